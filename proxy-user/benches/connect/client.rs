// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The two ends of a measurement: threads pinned to one CPU that connect, ask and answer with plain
//! blocking sockets.

use std::{
    io::{Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    sync::mpsc::{Receiver, Sender, channel},
    thread::{self, Scope},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, ensure};
use socket2::{Domain, SockAddr, Socket, Type};

use crate::{
    measure::{median, pin},
    support::{cgroup::Cgroup, netns::NetNs},
};

/// An answer that takes longer counts as lost.
const PATIENCE: Duration = Duration::from_secs(2);

/// What a client does, all at one go.
#[derive(Clone, Copy)]
pub(crate) enum Job {
    /// Connect, one byte each way, close; that often.
    Connections(SocketAddr, u32),
    /// One byte each way on one connected UDP socket; that often.
    Datagrams(SocketAddr, u32),
}

/// How long it took, in microseconds.
#[derive(Clone, Copy, Default)]
pub(crate) struct Took {
    /// One connection or exchange.
    pub(crate) each: f64,
    /// The median of connect() alone; 0 for datagrams.
    pub(crate) connect: f64,
}

/// A thread that is in a network namespace and a cgroup for good, as a process of a pod is.
pub(crate) struct Client {
    jobs: Sender<Job>,
    results: Receiver<Result<Took>>,
}

impl Client {
    /// Starts the thread; it ends when this is dropped.
    pub(crate) fn start<'scope>(
        scope: &'scope Scope<'scope, '_>,
        namespace: &'scope NetNs,
        cgroup: &'scope Cgroup,
    ) -> Self {
        let (jobs, todo) = channel::<Job>();
        let (done, results) = channel();
        scope.spawn(move || {
            let work = || {
                for job in todo {
                    if done.send(run(job)).is_err() {
                        break;
                    }
                }
            };
            let placed = pin().and_then(|()| cgroup.inside(|| namespace.enter(work)));
            if let Err(error) = placed.flatten() {
                eprintln!("the client's thread: {error:#}");
            }
        });
        Self { jobs, results }
    }

    pub(crate) fn run(&self, job: Job) -> Result<Took> {
        let gone = || anyhow!("the client's thread has ended");
        self.jobs.send(job).map_err(|_| gone())?;
        self.results.recv().map_err(|_| gone())?
    }
}

fn run(job: Job) -> Result<Took> {
    match job {
        Job::Connections(to, count) => {
            connections(to, count).with_context(|| format!("a connection to {to}"))
        }
        Job::Datagrams(to, count) => {
            datagrams(to, count).with_context(|| format!("a datagram to {to}"))
        }
    }
}

fn connections(to: SocketAddr, count: u32) -> Result<Took> {
    let to = SockAddr::from(to);
    let mut connects = Vec::with_capacity(count as usize);
    let mut byte = [0];
    let begin = Instant::now();
    for _ in 0..count {
        let mut socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        let before = Instant::now();
        socket.connect(&to)?;
        connects.push(micros(before.elapsed()));
        socket.write_all(&[7])?;
        socket.read_exact(&mut byte)?;
    }
    Ok(Took {
        each: micros(begin.elapsed()) / f64::from(count),
        connect: median(&connects),
    })
}

fn datagrams(to: SocketAddr, count: u32) -> Result<Took> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.connect(to)?;
    let mut byte = [0];
    let begin = Instant::now();
    for _ in 0..count {
        socket.send(&[7])?;
        ensure!(socket.recv(&mut byte)? == 1, "a byte comes back");
    }
    Ok(Took {
        each: micros(begin.elapsed()) / f64::from(count),
        connect: 0.0,
    })
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// Serves TCP and UDP on each of the ports, in a pod whose processes are in the cgroup. The threads live as
/// long as the program.
pub(crate) fn serve(namespace: &NetNs, cgroup: &Cgroup, ports: &[u16]) -> Result<()> {
    for port in ports {
        let at = (Ipv4Addr::UNSPECIFIED, *port);
        let make = || (TcpListener::bind(at), UdpSocket::bind(at));
        let (tcp, udp) = cgroup.inside(|| namespace.enter(make))??;
        let (tcp, udp) = (tcp?, udp?);
        thread::spawn(move || {
            pin()?;
            // One after the other: an answer that is late shows in the client's time.
            for stream in tcp.incoming() {
                // A client that has given up is its own affair.
                let _ = answer(&mut stream?);
            }
            Ok::<_, anyhow::Error>(())
        });
        thread::spawn(move || {
            pin()?;
            let mut buffer = [0; 64];
            loop {
                let (length, from) = udp.recv_from(&mut buffer)?;
                udp.send_to(&buffer[..length], from)?;
            }
            #[expect(unreachable_code, reason = "gives the closure its type")]
            Ok::<_, anyhow::Error>(())
        });
    }
    Ok(())
}

/// Echoes bytes until the client closes.
fn answer(stream: &mut TcpStream) -> std::io::Result<()> {
    let mut byte = [0];
    while stream.read(&mut byte)? == 1 {
        stream.write_all(&byte)?;
    }
    Ok(())
}
