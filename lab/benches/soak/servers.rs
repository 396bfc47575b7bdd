// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The servers in the pods of the soak test. An answer consists of the answering pod's IPv4
//! address, the request's number, one of three words: `ok`, `bye` (the server closes now),
//! `stranger` (the pod is no endpoint of the requested service), and the client's address and port
//! as the pod sees them.

use std::{
    collections::BTreeMap,
    io,
    net::{self, IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result};
use lab::{
    lock,
    node::{cgroup::Cgroup, netns::NetNs},
};
use nix::sys::socket::{setsockopt, sockopt};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpSocket, TcpStream, UdpSocket},
    runtime::{Builder, Runtime},
    time::sleep,
};

use crate::{
    cluster::PORT,
    world::{v4_of, v6_of},
};

/// Number of clients that may connect at once.
const BACKLOG: u32 = 1024;
/// A large answer is cut into datagrams: the payload of each in bytes, and their number.
pub(crate) const SEGMENT: usize = 1200;
pub(crate) const SEGMENTS: usize = 10;

/// The datagrams of one-way senders that have arrived. Key: sender and number of the datagram.
/// Value: the address of the pod that received it.
pub(crate) type Arrivals = Mutex<BTreeMap<(u64, u64), Ipv4Addr>>;

struct State {
    /// The bits of the services that the pod is an endpoint of.
    services: u32,
    is_draining: AtomicBool,
    arrivals: Arc<Arrivals>,
}

/// The servers of one pod; dropping it ends them.
pub(crate) struct Server {
    state: Arc<State>,
    _runtime: Runtime,
}

impl Server {
    /// Serves TCP at every address of the namespace, and UDP at each of `addresses` and at the IPv6
    /// addresses of the same pods. `services` are the bits of the services that the pod is an
    /// endpoint of.
    pub(crate) fn start(
        namespace: &NetNs,
        cgroup: Option<&Cgroup>,
        addresses: &[Ipv4Addr],
        services: u32,
        arrivals: &Arc<Arrivals>,
    ) -> Result<Self> {
        let state = Arc::new(State {
            services,
            is_draining: AtomicBool::new(false),
            arrivals: Arc::clone(arrivals),
        });
        // Two threads, so that one busy connection does not delay all others of the pod.
        let mut builder = Builder::new_multi_thread();
        let threads = builder.worker_threads(2).enable_all().build();
        let runtime = threads.context("start the servers' threads")?;
        let start = || -> Result<()> {
            let _here = runtime.enter();
            // Of both families.
            let socket = TcpSocket::new_v6()?;
            socket.set_reuseaddr(true)?;
            socket.bind((Ipv6Addr::UNSPECIFIED, PORT).into())?;
            tokio::spawn(accept(socket.listen(BACKLOG)?, Arc::clone(&state)));
            let pods = addresses.iter();
            for address in pods.flat_map(|pod| [IpAddr::V4(*pod), v6_of(*pod).into()]) {
                let socket = net::UdpSocket::bind((address, PORT))?;
                socket.set_nonblocking(true)?;
                let socket = Arc::new(UdpSocket::from_std(socket)?);
                tokio::spawn(receive(socket, v4_of(address), Arc::clone(&state)));
            }
            Ok(())
        };
        let started = match cgroup {
            Some(cgroup) => cgroup.inside(|| namespace.enter(start))??,
            None => namespace.enter(start)?,
        };
        started.with_context(|| format!("serve in {}", namespace.name()))?;
        Ok(Self {
            state,
            _runtime: runtime,
        })
    }

    /// Makes clients go away: the next answer on each connection is its last one.
    pub(crate) fn drain(&self) {
        self.state.is_draining.store(true, Ordering::Relaxed);
    }
}

/// Returns a request's verb, the service's bit, and three numbers that the verb gives a meaning.
fn parse(text: &str) -> Option<(&str, u32, [u64; 3])> {
    let mut words = text.split_whitespace();
    let (verb, service) = (words.next()?, words.next()?.parse().ok()?);
    let mut numbers = [0; 3];
    for number in &mut numbers {
        *number = words.next()?.parse().ok()?;
    }
    Some((verb, service, numbers))
}

impl State {
    fn serves(&self, service: u32) -> bool {
        self.services & service != 0
    }

    /// Returns the answer of the pod `pod` to the request `number` of `client`, padded to `length`.
    fn answer(
        &self,
        (pod, client): (Ipv4Addr, SocketAddr),
        service: u32,
        [number, length]: [u64; 2],
        is_last: bool,
    ) -> Vec<u8> {
        let word = match is_last {
            _ if !self.serves(service) => "stranger",
            true => "bye",
            false => "ok",
        };
        // The padding comes before the end of the line.
        let mut bytes = format!("{pod} {number} {word} {client} ").into_bytes();
        bytes.resize(bytes.len().max((length as usize).saturating_sub(1)), b'.');
        bytes.push(b'\n');
        bytes
    }
}

// An error of one client is ignored here: the client reports it.

async fn accept(listener: TcpListener, state: Arc<State>) {
    loop {
        if let Ok((stream, _)) = listener.accept().await {
            let state = Arc::clone(&state);
            tokio::spawn(async move { _ = converse(stream, &state).await });
        }
    }
}

async fn converse(stream: TcpStream, state: &State) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let (pod, mut client) = (stream.local_addr()?.ip(), stream.peer_addr()?);
    client.set_ip(client.ip().to_canonical());
    let ends = (v4_of(pod), client);
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    while stream.read_line(&mut line).await? > 0 {
        let Some((verb, service, [number, length, more])) = parse(&line) else {
            return Ok(());
        };
        if verb == "stream" {
            let answer = state.answer(ends, service, [number, 0], false);
            for _ in 0..length {
                stream.write_all(&answer).await?;
                sleep(Duration::from_millis(more)).await;
            }
        } else {
            let is_last = more != 0 || state.is_draining.load(Ordering::Relaxed);
            let answer = state.answer(ends, service, [number, length], is_last);
            stream.write_all(&answer).await?;
            if is_last {
                stream.shutdown().await?;
            }
        }
        line.clear();
    }
    Ok(())
}

async fn receive(socket: Arc<UdpSocket>, pod: Ipv4Addr, state: Arc<State>) {
    let mut buffer = [0; 2048];
    loop {
        let Ok((length, from)) = socket.recv_from(&mut buffer).await else {
            continue;
        };
        let text = String::from_utf8_lossy(&buffer[..length]);
        let Some((verb, service, [number, length, more])) = parse(&text) else {
            continue;
        };
        let ends = (pod, from);
        let answer = |length| state.answer(ends, service, [number, length], false);
        match verb {
            "one-way" if state.serves(service) => {
                lock(&state.arrivals).insert((number, length), pod);
            }
            "one-way" => {}
            "segments" => _ = segments(&socket, &answer(SEGMENT as u64), from).await,
            // Each answer has the next number, so that a lost one shows at once.
            "stream" => {
                let (socket, state) = (Arc::clone(&socket), Arc::clone(&state));
                tokio::spawn(async move {
                    for number in number..number + length {
                        let answer = state.answer(ends, service, [number, 0], false);
                        _ = socket.send_to(&answer, from).await;
                        sleep(Duration::from_millis(more)).await;
                    }
                });
            }
            _ => _ = socket.send_to(&answer(length), from).await,
        }
    }
}

/// Sends one buffer, which the kernel or the last interface cuts into datagrams (GSO).
async fn segments(socket: &UdpSocket, answer: &[u8], to: SocketAddr) -> io::Result<()> {
    setsockopt(socket, sockopt::UdpGsoSegment, &(SEGMENT as i32))?;
    let sent = socket.send_to(&answer.repeat(SEGMENTS), to).await;
    setsockopt(socket, sockopt::UdpGsoSegment, &0)?;
    sent.map(drop)
}
