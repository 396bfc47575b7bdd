// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An attack: short connections to a node port of a service with one endpoint, masqueraded, from
//! six pods as fast as possible. Every connection needs its own masquerade port: the rate must not
//! decrease.

use std::{
    io::{Read, Write},
    net::{SocketAddrV4, TcpStream},
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};

use super::{
    clients::PATIENCE,
    proxies::Served,
    world::{CLIENTS, Call},
};
use crate::interrupt::INTERRUPTED;

/// The short connections of all clients, counted in time windows of equal length.
#[derive(Debug)]
pub struct Short {
    /// Successful connections per second in each time window, earliest window first.
    pub rates: Vec<f64>,
    pub failed: u32,
}

impl Short {
    /// Returns the slowest window's rate as a share of the first window's.
    pub fn kept(&self) -> f64 {
        let slowest = self.rates.iter().copied().fold(f64::INFINITY, f64::min);
        slowest / self.rates[0]
    }
}

/// Which side closes each connection first. That side keeps its addresses and ports in TIME-WAIT
/// for a minute.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Closes {
    Client,
    Server,
}

/// Runs the attack for `windows` time windows of `length`.
pub fn run(served: &Served<'_>, closes: Closes, windows: u32, length: Duration) -> Result<Short> {
    let to = served.address(match closes {
        Closes::Client => Call::NodePort,
        Closes::Server => Call::NodePortServerCloses,
    });
    let made: Vec<_> = (0..windows).map(|_| AtomicU32::new(0)).collect();
    let failed = AtomicU32::new(0);
    let begin = Instant::now();
    // Returns the counter of the current time window; None after the last window.
    let window = || {
        let number = begin.elapsed().as_nanos() / length.as_nanos();
        made.get(number as usize)
    };
    thread::scope(|scope| {
        let clients: Vec<_> = served.world.clients()[..CLIENTS]
            .iter()
            .map(|client| {
                scope.spawn(|| {
                    client.enter(|| {
                        while window().is_some() && !INTERRUPTED.load(Ordering::Relaxed) {
                            let done = connection(to, closes);
                            // A connection counts for the window in which it ended. A connection
                            // that ends after the last window does not count.
                            let Some(made) = window() else { break };
                            let counter = if done.is_ok() { made } else { &failed };
                            counter.fetch_add(1, Ordering::Relaxed);
                        }
                    })
                })
            })
            .collect();
        for client in clients {
            let ended = client.join().ok().context("a client broke down")?;
            ended?;
        }
        Ok::<_, anyhow::Error>(())
    })?;
    let rate = |made: AtomicU32| f64::from(made.into_inner()) / length.as_secs_f64();
    Ok(Short {
        rates: made.into_iter().map(rate).collect(),
        failed: failed.into_inner(),
    })
}

fn connection(to: SocketAddrV4, closes: Closes) -> std::io::Result<()> {
    let mut stream = TcpStream::connect_timeout(&to.into(), PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(&[7])?;
    stream.read_exact(&mut [0])?;
    if closes == Closes::Server {
        // Reads the end of the server's stream.
        _ = stream.read(&mut [0])?;
    }
    Ok(())
}
