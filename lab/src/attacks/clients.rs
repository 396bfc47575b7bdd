// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Clients that are to be served while the node is attacked: connections that stay open, and new
//! connections at a rate.

use std::{
    io::{self, Read, Write},
    net::{SocketAddrV4, TcpStream},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};

use crate::node::netns::NetNs;

/// Timeout of a client's connection or answer. Long enough for two repeated SYNs.
const PATIENCE: Duration = Duration::from_secs(3);
/// The time between two new connections.
const PAUSE: Duration = Duration::from_millis(10);

/// Opens `count` connections from the network namespace, independent of the outcome of earlier
/// ones. Returns how long connect() took for those that also carried a byte there and back, the
/// shortest time first.
pub fn new_ones(from: &NetNs, to: SocketAddrV4, count: u32) -> Result<Vec<Duration>> {
    let connection = || -> io::Result<Duration> {
        let begin = Instant::now();
        let mut stream = TcpStream::connect_timeout(&to.into(), PATIENCE)?;
        let took = begin.elapsed();
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(&[7])?;
        stream.read_exact(&mut [0])?;
        Ok(took)
    };
    // The threads are in the namespace of the one that begins them.
    let mut took = from.enter(|| {
        thread::scope(|scope| {
            let begin = |_| {
                thread::sleep(PAUSE);
                scope.spawn(connection)
            };
            let begun: Vec<_> = (0..count).map(begin).collect();
            let ended = begun.into_iter().filter_map(|one| one.join().ok()?.ok());
            ended.collect::<Vec<_>>()
        })
    })?;
    took.sort();
    Ok(took)
}

/// Opens `count` connections, which stay open. Fails if one of them does not carry a byte there and
/// back.
pub fn open(from: &NetNs, to: SocketAddrV4, count: u32) -> Result<Vec<TcpStream>> {
    let connect = |_| TcpStream::connect_timeout(&to.into(), PATIENCE);
    let streams = from.enter(|| (0..count).map(connect).collect::<io::Result<Vec<_>>>())?;
    let mut open = streams.with_context(|| format!("open connections to {to}"))?;
    let lost = lost(&mut open);
    ensure!(lost == 0, "{lost} new connections carry nothing");
    Ok(open)
}

/// Returns how many connections no longer carry a byte there and back. All bytes are sent before
/// the first answer is awaited.
pub fn lost(open: &mut [TcpStream]) -> usize {
    let asked: Vec<_> = open.iter_mut().map(|one| one.write_all(&[7])).collect();
    let deadline = Instant::now() + PATIENCE;
    let answered = |(stream, asked): (&mut TcpStream, io::Result<()>)| {
        let left = deadline.saturating_duration_since(Instant::now());
        asked?;
        stream.set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
        stream.read_exact(&mut [0])
    };
    let answers = open.iter_mut().zip(asked).map(answered);
    answers.filter(Result::is_err).count()
}
