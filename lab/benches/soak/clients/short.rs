// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Clients that open a TCP connection for each request, singly and 200 at once. One of SCTP, too.

use std::{
    io::{self, BufRead, BufReader, ErrorKind, Read, Write},
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream},
    process::Command,
    thread,
    time::Duration,
};

use lab::traffic::{clients, probe::Outcome};
use nix::sys::socket::{setsockopt, sockopt};
use proxy_common::Protocol;
use socket2::{Domain, SockAddr, Socket, Type};

use super::{Answer, Calls, Client, PATIENCE, any, ensure_same, nonce};
use crate::{
    cluster::data,
    record::{Begun, Exchange},
    world::is_here,
};

/// Number of connections that are open at once.
const CROWD: usize = 200;
const LENGTH: u64 = 100;

/// A TCP connection to a server.
pub(super) struct Connection(BufReader<TcpStream>);

impl Connection {
    /// Connects to `begun.to`, from source port `port` (0: any). Writes the own address to `begun`.
    pub(super) fn open(begun: &mut Begun, port: u16) -> io::Result<Self> {
        let socket = loop {
            let socket = Socket::new(Domain::for_address(begun.to), Type::STREAM, None)?;
            socket.set_reuse_address(port != 0)?;
            if port != 0 || begun.from.is_some() {
                // The kernel chooses a port that is left open when the socket connects.
                setsockopt(&socket, sockopt::IpBindAddressNoPort, &true)?;
                let own = SocketAddr::new(begun.from.unwrap_or(any(begun.to)), port);
                socket.bind(&SockAddr::from(own))?;
            }
            let connected = socket.connect_timeout(&SockAddr::from(begun.to), PATIENCE);
            begun.local = socket.local_addr()?.as_socket();
            match connected {
                Ok(()) => break socket,
                // The previous connection from this port still waits for its last acknowledgement.
                Err(error)
                    if port != 0
                        && error.kind() == ErrorKind::AddrNotAvailable
                        && begun.began.elapsed() < PATIENCE =>
                {
                    thread::sleep(Duration::from_millis(10));
                }
                Err(error) => {
                    let text = format!("connect [{}]", connecting(begun.local));
                    return Err(named(&text, &error));
                }
            }
        };
        socket.set_read_timeout(Some(PATIENCE))?;
        socket.set_tcp_nodelay(true)?;
        Ok(Self(BufReader::new(socket.into())))
    }

    pub(super) fn send(&mut self, request: &str) -> io::Result<()> {
        let sent = self.0.get_mut().write_all(request.as_bytes());
        sent.map_err(|error| named("send", &error))
    }

    pub(super) fn receive(&mut self) -> io::Result<Answer> {
        let mut line = String::new();
        let read = self.0.read_line(&mut line);
        match read.map_err(|error| named("receive", &error))? {
            0 => Err(io::Error::new(
                ErrorKind::UnexpectedEof,
                "closed by the server",
            )),
            _ => Answer::parse(&line),
        }
    }

    /// Returns how the connection has ended; None if it has not. Sends a request if `speaks`.
    pub(super) fn end(&mut self, calls: &Calls<'_>, speaks: bool) -> Option<io::Error> {
        const MOMENT: Duration = Duration::from_millis(10);
        let mut probe = || {
            if speaks {
                self.send(&calls.request("ask", [nonce(), LENGTH, 0]))?;
            }
            self.0.get_ref().set_read_timeout(Some(MOMENT))?;
            self.receive().map(drop)
        };
        let error = probe().err();
        error.filter(|error| error.kind() != ErrorKind::WouldBlock)
    }

    /// Sends a request for an answer of `size` bytes. If the answer says that the server closes
    /// the connection, waits for it.
    pub(super) fn ask(&mut self, calls: &Calls<'_>, size: u64, closes: bool) -> io::Result<Answer> {
        let number = nonce();
        self.send(&calls.request("ask", [number, size, u64::from(closes)]))?;
        let answer = self.receive()?;
        if answer.number != number {
            return Err(io::Error::other("the answer to another question"));
        }
        calls.ensure_local(&answer, self.0.get_ref().local_addr()?)?;
        if answer.is_last {
            let rest = self.0.read_to_end(&mut Vec::new());
            rest.map_err(|error| named("wait for the server to close", &error))?;
        }
        Ok(answer)
    }
}

/// Returns what ss(8) shows of the socket at `local`, which is still connecting: its peer is an
/// endpoint if the connection was translated at the socket.
fn connecting(local: Option<SocketAddr>) -> String {
    let port = format!(":{}", local.map_or(0, |local| local.port()));
    let words = ["-tnH", "state", "syn-sent", "sport", "=", &port];
    let shown = Command::new("ss").args(words).output();
    let shown = shown.map(|shown| shown.stdout).unwrap_or_default();
    String::from_utf8_lossy(&shown).trim().to_owned()
}

fn named(attempt: &str, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{attempt}: {error}"))
}

/// Opens a connection and sends one request. The server closes first if `server_closes`.
fn once(calls: &Calls<'_>, to: SocketAddr, server_closes: bool) -> Exchange {
    let mut begun = Begun::now(to, calls.tally.plan.origin.source());
    let connection = Connection::open(&mut begun, 0);
    let answer = connection.and_then(|mut one| one.ask(calls, LENGTH, server_closes));
    let answer = answer.and_then(|answer| calls.ensure_endpoint(&answer, &begun));
    begun.ends(&answer)
}

/// A client with short connections, one after another.
#[derive(Default)]
pub(super) struct Short {
    count: u64,
}

impl Client for Short {
    fn exchange(&mut self, calls: &mut Calls<'_>) {
        self.count += 1;
        let to = calls.address();
        let exchange = once(calls, to, self.count.is_multiple_of(2));
        calls.note(&exchange);
    }
}

/// A client that opens a second connection while the first one is in use, as FTP does.
#[derive(Default)]
pub(super) struct Ftp;

impl Client for Ftp {
    fn exchange(&mut self, calls: &mut Calls<'_>) {
        calls.exchange(None, |calls, begun| {
            let mut control = Connection::open(begun, 0)?;
            let pod = control.ask(calls, LENGTH, false)?.by;
            let by = calls.tally.plan.by.filter(|_| calls.frontend.is_some());
            let mut second = Begun::now(data(begun.to, by), begun.from);
            let answer = Connection::open(&mut second, 0)?.ask(calls, 60_000, true)?;
            ensure_same(Some(pod), answer.by)?;
            control.ask(calls, LENGTH, true)
        });
    }
}

/// A client with short connections that must all be answered by one pod.
#[derive(Default)]
pub(super) struct Sticky {
    pod: Option<Ipv4Addr>,
}

impl Client for Sticky {
    fn exchange(&mut self, calls: &mut Calls<'_>) {
        calls.exchange(None, |calls, begun| {
            let answer = Connection::open(begun, 0)?.ask(calls, LENGTH, false)?;
            // Without a proxy, answers of different pods are right.
            let before = self.pod.replace(answer.by);
            ensure_same(before.filter(|_| calls.frontend.is_some()), answer.by)
        });
    }
}

/// A client that calls a service with `externalTrafficPolicy: Local` from the node, so that all
/// endpoints have to serve it, those on other nodes as well.
#[derive(Default)]
pub(super) struct Inside {
    /// The number of answers from the node since the last one from another node.
    from_here: u32,
}

impl Client for Inside {
    fn exchange(&mut self, calls: &mut Calls<'_>) {
        /// So many answers come from the two endpoints of seven that are here by no chance.
        const MOST: u32 = 30;
        calls.exchange(None, |calls, begun| {
            let by = Connection::open(begun, 0)?.ask(calls, LENGTH, false)?.by;
            self.from_here = if is_here(by) { self.from_here + 1 } else { 0 };
            let is_served = (self.from_here < MOST).then_some(());
            is_served.ok_or_else(|| io::Error::other("no endpoint on another node answers"))
        });
    }
}

/// A client with 200 connections at once.
#[derive(Default)]
pub(super) struct Crowd;

impl Client for Crowd {
    fn exchange(&mut self, calls: &mut Calls<'_>) {
        let to: Vec<_> = (0..CROWD).map(|_| calls.address()).collect();
        let shared = &*calls;
        let ended: Vec<_> = thread::scope(|scope| {
            let ask = |(number, to): (usize, SocketAddr)| {
                let small = thread::Builder::new().stack_size(128 << 10);
                small.spawn_scoped(scope, move || once(shared, to, number.is_multiple_of(2)))
            };
            let threads: Vec<_> = to.into_iter().enumerate().flat_map(ask).collect();
            let threads = threads.into_iter();
            threads.flat_map(thread::ScopedJoinHandle::join).collect()
        });
        ended.iter().for_each(|exchange| calls.note(exchange));
    }
}

/// A client that sends an SCTP association's first packet and reads the second, by a new port.
#[derive(Default)]
pub(super) struct Associations;

impl Client for Associations {
    fn exchange(&mut self, calls: &mut Calls<'_>) {
        calls.exchange(None, |calls, begun| {
            let namespace = calls.world.namespace(calls.tally.plan.origin);
            // A loopback address here makes the kernel choose the source.
            let client = clients::Client::new(namespace, IpAddr::V4(Ipv4Addr::LOCALHOST));
            let attempt = client.call(Protocol::SCTP, begun.to, 0);
            let attempt = attempt.map_err(|error| io::Error::other(format!("{error:#}")))?;
            begun.local = Some(attempt.source);
            match attempt.outcome {
                Outcome::Answered(_) => Ok(()),
                other => Err(io::Error::other(format!("{other:?}"))),
            }
        });
    }
}
