// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The client of a benchmark: a thread pinned to one CPU with plain blocking sockets.

use std::{
    collections::BTreeSet,
    io::{Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpStream, UdpSocket},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, anyhow, ensure};
use hdrhistogram::Histogram;
use nix::time::{ClockId, clock_gettime};
use socket2::{Domain, SockAddr, Socket, Type};

use crate::{
    load::cpu::{pin, unpin},
    node::{cgroup::Cgroup, netns::NetNs},
};

/// An answer that takes longer counts as lost.
const PATIENCE: Duration = Duration::from_secs(2);

/// What a job of a client took: times, and who answered.
pub struct Took {
    /// Time of one connection, exchange, or datagram, in microseconds.
    pub each: f64,
    /// Processor time of each operation, client and server together, in microseconds.
    pub processor: f64,
    /// Duration of every connect(), in nanoseconds; empty except for [`connections`].
    pub connects: Histogram<u32>,
    /// The names of the servers that answered; empty except for [`connections`].
    pub answered: BTreeSet<u8>,
}

/// Returns an empty histogram for 1 ns to 10 s, exact to three digits.
pub fn histogram() -> Histogram<u32> {
    let (lowest, highest) = (1, 10_000_000_000);
    Histogram::new_with_bounds(lowest, highest, 3).expect("the bounds are in order")
}

/// Does a job on a pinned thread in a network namespace and a cgroup, as a process of a pod does.
pub fn run(
    namespace: &NetNs,
    cgroup: Option<&Cgroup>,
    job: impl FnOnce() -> Result<Took> + Send,
) -> Result<Took> {
    let work = || {
        pin()?;
        match cgroup {
            Some(cgroup) => cgroup.inside(|| namespace.enter(job))??,
            None => namespace.enter(job)?,
        }
    };
    let ended = thread::scope(|scope| scope.spawn(work).join());
    ended.map_err(|_| anyhow!("the client's thread broke down"))?
}

/// Times `work`, which does `count` operations. Client and server of each are in this process.
fn timed(count: u32, work: impl FnOnce() -> Result<()>) -> Result<Took> {
    let processor = || clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).map(Duration::from);
    let (used, begin) = (processor()?, Instant::now());
    work()?;
    let (each, used) = (begin.elapsed(), processor()? - used);
    Ok(Took {
        each: micros(each) / f64::from(count),
        processor: micros(used) / f64::from(count),
        connects: histogram(),
        answered: BTreeSet::new(),
    })
}

/// Connects, sends and receives one byte, closes, `count` times; to the addresses in turn.
pub fn connections(to: &[SocketAddr], count: u32) -> Result<Took> {
    let to: Vec<_> = to.iter().copied().map(SockAddr::from).collect();
    let (mut connects, mut answered) = (histogram(), BTreeSet::new());
    let took = timed(count, || {
        for to in to.iter().cycle().take(count as usize) {
            let (connect, by) = connection(to)?;
            connects.saturating_record(connect.as_nanos() as u64);
            answered.insert(by);
        }
        Ok(())
    })?;
    Ok(Took {
        connects,
        answered,
        ..took
    })
}

/// Makes a TCP connection. Returns how long connect() took, and the name that the server answered.
fn connection(to: &SockAddr) -> Result<(Duration, u8)> {
    let mut byte = [0];
    let mut socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    let before = Instant::now();
    socket.connect(to)?;
    let connect = before.elapsed();
    socket.write_all(&[7])?;
    socket.read_exact(&mut byte)?;
    Ok((connect, byte[0]))
}

/// Does the same by several clients at once on all CPUs, each with `each` connections.
pub fn crowd(to: SocketAddr, clients: u32, each: u32) -> Result<Took> {
    let to = SockAddr::from(to);
    timed(clients * each, || {
        thread::scope(|scope| {
            let client = || {
                unpin()?;
                (0..each).try_for_each(|_| connection(&to).map(drop))
            };
            let threads: Vec<_> = (0..clients).map(|_| scope.spawn(client)).collect();
            let mut ended = threads.into_iter().map(thread::ScopedJoinHandle::join);
            ended.try_for_each(|ended| ended.map_err(|_| anyhow!("a client broke down"))?)
        })
    })
}

/// Sends and receives one byte on one open TCP connection, `count` times.
pub fn exchanges(to: SocketAddr, count: u32) -> Result<Took> {
    let mut stream = TcpStream::connect(to)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut byte = [0];
    timed(count, || {
        for _ in 0..count {
            stream.write_all(&[7])?;
            stream.read_exact(&mut byte)?;
        }
        Ok(())
    })
}

fn connected(to: SocketAddr) -> Result<UdpSocket> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.connect(to)?;
    Ok(socket)
}

/// Sends and receives one byte on one connected UDP socket, `count` times.
pub fn datagrams(to: SocketAddr, count: u32) -> Result<Took> {
    let socket = connected(to)?;
    let mut byte = [0];
    timed(count, || {
        for _ in 0..count {
            socket.send(&[7])?;
            ensure!(socket.recv(&mut byte)? == 1, "a byte comes back");
        }
        Ok(())
    })
}

/// Sends `count` datagrams of one byte, which nobody answers.
pub fn flood(to: SocketAddr, count: u32) -> Result<Took> {
    let socket = connected(to)?;
    timed(count, || {
        for _ in 0..count {
            socket.send(&[7])?;
        }
        Ok(())
    })
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}
