// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The servers in the pods of the soak test. An answer consists of the answering pod's address, the
//! request's number, and one of three words: `ok`, `bye` (the server closes now), `stranger` (the
//! pod is no endpoint of the requested service).

use std::{
    collections::BTreeMap,
    io::{self, BufRead, BufReader, ErrorKind, Write},
    net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpStream, UdpSocket},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use anyhow::{Context, Result};
use lab::{
    lock,
    node::{cgroup::Cgroup, netns::NetNs},
};
use nix::sys::socket::{setsockopt, sockopt};
use socket2::{Domain, SockAddr, Socket, Type};

use crate::cluster::{DATA_PORT, PORT};

/// How often a server checks whether it is to end.
const LOOK: Duration = Duration::from_millis(100);
/// Number of clients that may connect at once.
const BACKLOG: i32 = 1024;
/// Stack size in bytes of a thread that serves one connection.
const STACK: usize = 128 << 10;
/// A large answer is cut into datagrams: the payload of each in bytes, and their number.
pub(crate) const SEGMENT: usize = 1200;
pub(crate) const SEGMENTS: usize = 10;

/// The datagrams of one-way senders that have arrived. Key: sender and number of the datagram.
/// Value: the address of the pod that received it.
#[derive(Default)]
pub(crate) struct Arrivals(Mutex<BTreeMap<(u64, u64), Ipv4Addr>>);

impl Arrivals {
    fn note(&self, sender: u64, number: u64, pod: Ipv4Addr) {
        lock(&self.0).insert((sender, number), pod);
    }
    /// Removes the entry of a datagram. Returns the pod that received it; None if it has not
    /// arrived.
    pub(crate) fn take(&self, sender: u64, number: u64) -> Option<Ipv4Addr> {
        lock(&self.0).remove(&(sender, number))
    }
}

struct State {
    /// The bits of the services that the pod is an endpoint of.
    services: u32,
    is_draining: AtomicBool,
    has_ended: AtomicBool,
    arrivals: Arc<Arrivals>,
}

/// The servers of one pod; dropping it ends them.
pub(crate) struct Server(Arc<State>);

impl Server {
    /// Serves TCP at every address of the namespace, and UDP at each of `addresses`. `services` are
    /// the bits of the services that the pod is an endpoint of.
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
            has_ended: AtomicBool::new(false),
            arrivals: Arc::clone(arrivals),
        });
        let start = || -> Result<()> {
            for port in [PORT, DATA_PORT] {
                let listener = listen(port)?;
                let state = Arc::clone(&state);
                spawn(move || accept(&listener, &state))?;
            }
            for address in addresses {
                let (state, address) = (Arc::clone(&state), *address);
                let socket = UdpSocket::bind((address, PORT))?;
                socket.set_read_timeout(Some(LOOK))?;
                spawn(move || receive(&Arc::new(socket), address, &state))?;
            }
            Ok(())
        };
        let started = match cgroup {
            Some(cgroup) => cgroup.inside(|| namespace.enter(start))??,
            None => namespace.enter(start)?,
        };
        started.with_context(|| format!("serve in {}", namespace.name()))?;
        Ok(Self(state))
    }

    /// Makes clients go away: the next answer on each connection is its last one.
    pub(crate) fn drain(&self) {
        self.0.is_draining.store(true, Ordering::Relaxed);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.0.has_ended.store(true, Ordering::Relaxed);
        // Waits until every thread has seen it.
        thread::sleep(3 * LOOK);
    }
}

fn spawn(work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let small = thread::Builder::new().stack_size(STACK);
    small.spawn(work).map(drop)
}

fn listen(port: u16) -> io::Result<Socket> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.set_read_timeout(Some(LOOK))?;
    socket.bind(&SockAddr::from(SocketAddr::from((
        Ipv4Addr::UNSPECIFIED,
        port,
    ))))?;
    socket.listen(BACKLOG)?;
    Ok(socket)
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
    )
}

fn accept(listener: &Socket, state: &Arc<State>) {
    while !state.has_ended.load(Ordering::Relaxed) {
        if let Ok((stream, _)) = listener.accept() {
            let state = Arc::clone(state);
            // An error is ignored here: the client reports it.
            _ = spawn(move || _ = converse(stream.into(), &state));
        }
    }
}

/// A request: the verb, the service's bit, and three numbers whose meaning depends on the verb.
struct Request<'a> {
    verb: &'a str,
    service: u32,
    numbers: [u64; 3],
}

fn parse(text: &str) -> Option<Request<'_>> {
    let mut words = text.split_whitespace();
    let (verb, service) = (words.next()?, words.next()?.parse().ok()?);
    let mut numbers = [0; 3];
    for number in &mut numbers {
        *number = words.next()?.parse().ok()?;
    }
    Some(Request {
        verb,
        service,
        numbers,
    })
}

impl State {
    /// Returns the answer of the pod at the address `pod`, padded to at least `length` bytes.
    fn answer(&self, pod: IpAddr, request: &Request<'_>, length: u64, is_last: bool) -> Vec<u8> {
        let word = match is_last {
            _ if self.services & request.service == 0 => "stranger",
            true => "bye",
            false => "ok",
        };
        let mut bytes = format!("{pod} {} {word}", request.numbers[0]).into_bytes();
        // The padding comes before the end of the line.
        bytes.push(b' ');
        bytes.resize(bytes.len().max(length as usize - 1), b'.');
        bytes.push(b'\n');
        bytes
    }
}

fn converse(stream: TcpStream, state: &State) -> io::Result<()> {
    stream.set_read_timeout(Some(LOOK))?;
    stream.set_nodelay(true)?;
    let pod = stream.local_addr()?.ip();
    let mut input = BufReader::new(stream);
    let mut line = Vec::new();
    loop {
        match input.read_until(b'\n', &mut line) {
            Ok(0) => return Ok(()),
            Err(error) if is_timeout(&error) => {
                if state.has_ended.load(Ordering::Relaxed) {
                    return Ok(());
                }
                continue;
            }
            read => read?,
        };
        let text = String::from_utf8_lossy(&line);
        let Some(request) = parse(&text) else {
            return Ok(());
        };
        let [_, length, more] = request.numbers;
        if request.verb == "stream" {
            for _ in 0..length {
                let answer = state.answer(pod, &request, 2, false);
                input.get_mut().write_all(&answer)?;
                thread::sleep(Duration::from_millis(more));
            }
        } else {
            let is_last = more != 0 || state.is_draining.load(Ordering::Relaxed);
            let answer = state.answer(pod, &request, length.max(2), is_last);
            input.get_mut().write_all(&answer)?;
            if is_last {
                input.get_mut().shutdown(Shutdown::Write)?;
            }
        }
        line.clear();
    }
}

fn receive(socket: &Arc<UdpSocket>, pod: Ipv4Addr, state: &Arc<State>) {
    let mut buffer = [0; 2048];
    while !state.has_ended.load(Ordering::Relaxed) {
        let Ok((length, from)) = socket.recv_from(&mut buffer) else {
            continue;
        };
        let text = String::from_utf8_lossy(&buffer[..length]).into_owned();
        let Some(request) = parse(&text) else {
            continue;
        };
        let [number, length, more] = request.numbers;
        // An error is ignored here: the client reports it.
        _ = match request.verb {
            "one-way" if state.services & request.service != 0 => {
                state.arrivals.note(number, length, pod);
                Ok(())
            }
            "one-way" => Ok(()),
            "segments" => segments(
                socket,
                &state.answer(pod.into(), &request, SEGMENT as u64, false),
                from,
            ),
            // Each answer's number is that of the one before plus 1, so that a lost one shows at once.
            "stream" => {
                let (socket, state) = (Arc::clone(socket), Arc::clone(state));
                let Request {
                    service, numbers, ..
                } = request;
                let mut request = Request {
                    verb: "stream",
                    service,
                    numbers,
                };
                spawn(move || {
                    for _ in 0..length {
                        if state.has_ended.load(Ordering::Relaxed) {
                            return;
                        }
                        let answer = state.answer(pod.into(), &request, 2, false);
                        _ = socket.send_to(&answer, from);
                        request.numbers[0] += 1;
                        thread::sleep(Duration::from_millis(more));
                    }
                })
            }
            _ => {
                let answer = state.answer(pod.into(), &request, length.max(2), false);
                socket.send_to(&answer, from).map(drop)
            }
        };
    }
}

/// Sends one buffer, which the kernel or the last interface cuts into datagrams (GSO).
fn segments(socket: &UdpSocket, answer: &[u8], to: SocketAddr) -> io::Result<()> {
    setsockopt(socket, sockopt::UdpGsoSegment, &(SEGMENT as i32))?;
    let sent = socket.send_to(&answer.repeat(SEGMENTS), to);
    setsockopt(socket, sockopt::UdpGsoSegment, &0)?;
    sent.map(drop)
}
