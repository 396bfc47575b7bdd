// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Clients that are to be served while the node is attacked: open connections, and new ones.

use std::{
    fmt,
    io::{self, Read, Write},
    net::{SocketAddr, SocketAddrV4, TcpStream},
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use hdrhistogram::Histogram;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net,
    runtime::Builder,
    task::JoinSet,
    time::{MissedTickBehavior, interval, timeout},
};

use crate::{load::client::histogram, node::netns::NetNs};

/// Timeout of a client's connection or answer. Long enough for two repeated SYNs.
pub(super) const PATIENCE: Duration = Duration::from_secs(3);

/// The results of new connections: how many were tried, how many succeeded.
pub struct Made {
    pub asked: u32,
    /// Connections that also carried a byte there and back.
    pub made: u32,
    /// Duration in nanoseconds of every successful connect().
    took: Histogram<u32>,
}

impl Made {
    /// Opens `count` connections from the network namespace, `rate` of them each second,
    /// independent of the outcome of earlier ones.
    pub(super) fn at_a_rate(from: &NetNs, rate: u32, count: u32, to: SocketAddrV4) -> Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let work = async {
            let mut ticks = interval(Duration::from_secs(1) / rate);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
            let mut clients = JoinSet::new();
            for _ in 0..count {
                ticks.tick().await;
                clients.spawn(timeout(PATIENCE, connection(to)));
            }
            let (mut made, mut took) = (0, histogram());
            while let Some(ended) = clients.join_next().await {
                if let Ok(Ok(Ok(one))) = ended {
                    made += 1;
                    took.saturating_record(one.as_nanos() as u64);
                }
            }
            let asked = count;
            Self { asked, made, took }
        };
        from.enter(|| runtime.block_on(work))
    }

    /// Returns the successful share, from 0 to 1.
    pub fn share(&self) -> f64 {
        f64::from(self.made) / f64::from(self.asked.max(1))
    }

    /// Returns a quantile of the durations, in milliseconds. `quantile` is from 0 to 1.
    pub fn took(&self, quantile: f64) -> f64 {
        self.took.value_at_quantile(quantile) as f64 / 1e6
    }
}

impl fmt::Debug for Made {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [median, late] = [0.5, 0.99].map(|quantile| self.took(quantile));
        let Self { asked, made, .. } = self;
        write!(f, "{made} of {asked}, {median:.2} / {late:.2} ms")
    }
}

/// Opens a connection and exchanges a byte; the client closes first. Returns connect()'s time.
async fn connection(to: SocketAddrV4) -> io::Result<Duration> {
    let begin = Instant::now();
    let mut stream = net::TcpStream::connect(SocketAddr::from(to)).await?;
    let took = begin.elapsed();
    stream.write_all(&[7]).await?;
    stream.read_exact(&mut [0]).await?;
    Ok(took)
}

/// TCP connections that stay open.
pub(super) struct Open(Vec<TcpStream>);

impl Open {
    /// Opens `count` connections to `to` from the network namespace. Fails if one of them does not
    /// carry a byte there and back.
    pub(super) fn make(namespace: &NetNs, to: SocketAddrV4, count: u32) -> Result<Self> {
        let connect = |_| TcpStream::connect_timeout(&to.into(), PATIENCE);
        let streams = namespace.enter(|| (0..count).map(connect).collect::<io::Result<_>>())?;
        let mut open = Self(streams.with_context(|| format!("open connections to {to}"))?);
        let lost = open.lost();
        anyhow::ensure!(lost == 0, "{lost} new connections carry nothing");
        Ok(open)
    }

    pub(super) fn count(&self) -> u32 {
        self.0.len() as u32
    }

    /// Returns how many connections no longer carry a byte there and back. All bytes are sent
    /// before the first answer is awaited.
    pub(super) fn lost(&mut self) -> u32 {
        let asked: Vec<_> = self.0.iter_mut().map(|one| one.write_all(&[7])).collect();
        let deadline = Instant::now() + PATIENCE;
        let answered = |(stream, asked): (&mut TcpStream, io::Result<()>)| {
            let left = deadline.saturating_duration_since(Instant::now());
            asked?;
            stream.set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
            stream.read_exact(&mut [0])
        };
        let answers = self.0.iter_mut().zip(asked).map(answered);
        answers.filter(Result::is_err).count() as u32
    }
}
