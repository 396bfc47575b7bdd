// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs a sequence with real sockets; the model checks the results.

use std::{
    collections::{BTreeMap, HashMap},
    io,
    net::{SocketAddr, TcpStream, UdpSocket},
    time::{Duration, Instant},
};

use socket2::{Domain, SockAddr, SockRef, Socket, Type};

use super::{
    model::{Model, Seen},
    node::Node,
    operations::{Family, Kind, Operation},
};
use crate::{
    clients::{Open, parse},
    kept::Sequence,
    kinds::disconnect,
    shorten::Difference,
    world::PATIENCE,
};

/// Returns how long to wait: not long where no answer is allowed to come.
fn patience(answers: bool) -> Duration {
    let short = Duration::from_millis(15);
    if answers { PATIENCE } else { short }
}

/// A socket that the sequence has opened.
enum OpenSocket {
    Udp(UdpSocket),
    Tcp(Socket),
    Stream(Open),
}

impl OpenSocket {
    fn as_ref(&self) -> SockRef<'_> {
        match self {
            Self::Udp(socket) => SockRef::from(socket),
            Self::Tcp(socket) => SockRef::from(socket),
            Self::Stream(open) => SockRef::from(&open.stream),
        }
    }
    fn port(&self) -> u16 {
        let local = self.as_ref().local_addr().ok();
        let local = local.and_then(|local| local.as_socket());
        local.map_or(0, |at| at.port())
    }
}

/// A sequence that is being run.
struct Run<'a> {
    node: &'a mut Node,
    model: Model,
    sockets: BTreeMap<u8, OpenSocket>,
    datagrams: u64,
}

/// Runs a sequence on a node that has no sockets.
pub(crate) fn run(node: &mut Node, sequence: &Sequence<Operation>) -> Result<(), Difference> {
    node.clear();
    let mut run = Run {
        node,
        model: Model::default(),
        sockets: BTreeMap::new(),
        datagrams: 0,
    };
    let mut count = 0;
    while let Some(Operation::Apply(service)) = sequence.0.get(count) {
        run.model.services.apply(service);
        count += 1;
    }
    run.node.world.publish(&run.model.services.all());
    for (operation, step) in sequence.0.iter().enumerate().skip(count) {
        let failed = |text| Difference { operation, text };
        run.step(step).map_err(failed)?;
    }
    let operation = sequence.0.len().saturating_sub(1);
    run.end().map_err(|text| Difference { operation, text })
}

impl Run<'_> {
    fn step(&mut self, step: &Operation) -> Result<(), String> {
        match step {
            Operation::Apply(wanted) => {
                self.model.services.apply(wanted);
                self.change()?;
            }
            Operation::Remove(number) => {
                self.model.services.remove(*number);
                self.change()?;
            }
            Operation::Restart => {
                self.node.restart();
                self.look_at_all()?;
            }
            Operation::Open(socket, kind) => {
                let held = self.open(*kind);
                self.sockets.insert(*socket, held);
                self.model.open(*socket, *kind);
            }
            Operation::Connect(socket, to) => self.connect(*socket, *to)?,
            Operation::Disconnect(socket) => {
                if let Some(OpenSocket::Udp(held)) = self.sockets.get(socket) {
                    disconnect(held);
                    self.model.disconnect(*socket);
                    self.look_at(*socket)?;
                }
            }
            Operation::Ask(socket, to) => self.ask(*socket, *to)?,
            Operation::Close(socket) => self.close(*socket),
        }
        Ok(())
    }
    /// Makes the model's services exist, and updates the model by the errors of sockets.
    fn change(&mut self) -> Result<(), String> {
        self.node.world.publish(&self.model.services.all());
        let errors = self.sockets.iter().map(|(socket, held)| {
            let error = held.as_ref().take_error().ok().flatten();
            (*socket, error.map(|error| number(&error)))
        });
        self.model.changed(&errors.collect::<HashMap<_, _>>())?;
        self.look_at_all()
    }
    fn look_at_all(&self) -> Result<(), String> {
        let mut sockets = self.sockets.keys();
        sockets.try_for_each(|socket| self.look_at(*socket))
    }
    /// Checks that getpeername returns the address that the application connected to.
    fn look_at(&self, socket: u8) -> Result<(), String> {
        let peer = self.sockets[&socket].as_ref().peer_addr().ok();
        let peer = peer.and_then(|peer| peer.as_socket());
        let talk = &self.model.talks[&socket];
        let wanted = talk.peer.as_ref().map(|peer| peer.to);
        if peer == wanted || peer.is_none() && self.model.is_dropped(socket) {
            return Ok(());
        }
        let what = format!("the peer of socket {socket} must be {wanted:?}");
        Err(format!("{what} but is {peer:?}: {talk:?}"))
    }
    fn open(&self, kind: Kind) -> OpenSocket {
        let is_v4 = kind.family == Family::V4;
        let domain = if is_v4 { Domain::IPV4 } else { Domain::IPV6 };
        let socket_type = if kind.udp { Type::DGRAM } else { Type::STREAM };
        let namespace = self.node.world.namespace(kind.place);
        let socket = namespace.enter(|| Socket::new(domain, socket_type, None));
        let socket = socket.expect("enter the namespace").expect("a socket");
        if !is_v4 {
            let set = socket.set_only_v6(kind.family == Family::V6);
            set.expect("IPV6_V6ONLY");
        }
        match kind.udp {
            true => OpenSocket::Udp(socket.into()),
            false => OpenSocket::Tcp(socket),
        }
    }
    fn close(&mut self, socket: u8) {
        self.sockets.remove(&socket);
        self.model.talks.remove(&socket);
    }

    fn connect(&mut self, socket: u8, to: SocketAddr) -> Result<(), String> {
        let Some(held) = self.sockets.get(&socket) else {
            return Ok(());
        };
        if self.model.is_senseless(socket, to) {
            return Ok(());
        }
        let seen = match held {
            OpenSocket::Stream(_) => return Ok(()),
            OpenSocket::Udp(held) => {
                let done = held.connect(to).map(|()| Seen::Done);
                done.unwrap_or_else(|error| Seen::Error(number(&error)))
            }
            OpenSocket::Tcp(held) => {
                let patience = patience(self.model.connects(socket, to));
                let connected = held.connect_timeout(&SockAddr::from(to), patience);
                let stream = connected.and_then(|()| held.try_clone());
                match stream.and_then(|stream| Open::over(TcpStream::from(stream))) {
                    Ok(open) => {
                        let answer = open.answer.clone();
                        self.sockets.insert(socket, OpenSocket::Stream(open));
                        Seen::Answer(answer, self.sockets[&socket].port())
                    }
                    Err(error) => Seen::Error(number(&error)),
                }
            }
        };
        if self.model.connect(socket, to, &seen)? {
            self.look_at(socket)
        } else {
            self.close(socket);
            Ok(())
        }
    }

    fn ask(&mut self, socket: u8, to: Option<SocketAddr>) -> Result<(), String> {
        let Some(held) = self.sockets.get_mut(&socket) else {
            return Ok(());
        };
        let is_deaf = self.model.talks[&socket].is_deaf;
        if to.is_some_and(|to| is_deaf || self.model.is_senseless(socket, to)) {
            return Ok(());
        }
        let pending = held.as_ref().take_error().ok().flatten();
        if pending.is_some_and(|error| number(&error) == libc::ECONNABORTED) {
            if !self.model.is_dropped(socket) {
                let talk = &self.model.talks[&socket];
                return Err(format!("socket {socket} was closed: {talk:?}"));
            }
            self.model.disconnect(socket);
        }
        let patience = patience(self.model.outlook(socket, to).answers);
        let seen = match held {
            OpenSocket::Udp(held) => {
                self.datagrams += 1;
                let text = format!("n{}", self.datagrams);
                let seen = converse(held, &text, to, patience);
                seen.unwrap_or_else(|error| Seen::Error(number(&error)))
            }
            OpenSocket::Stream(open) if to.is_none() => match open.is_alive() {
                true => Seen::Answer(open.answer.clone(), self.sockets[&socket].port()),
                false => Seen::Silence,
            },
            _ => return Ok(()),
        };
        self.model.ask(socket, to, &seen)?;
        self.look_at(socket)
    }

    /// Compares the hooks' entries with the open sockets; after closing all, none may be left.
    fn end(&mut self) -> Result<(), String> {
        let cookies = self.sockets.iter().map(|(socket, held)| {
            let cookie = held.as_ref().cookie().expect("a cookie");
            (cookie, *socket)
        });
        self.model
            .rows(&cookies.collect(), &self.node.world.sockets())?;
        self.sockets.clear();
        self.node.expect_empty()
    }
}

/// Returns the errno of an error.
fn number(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(match error.kind() {
        io::ErrorKind::TimedOut => libc::ETIMEDOUT,
        _ => libc::EIO,
    })
}

/// Sends a text and waits for the answer that contains it.
fn converse(
    socket: &UdpSocket,
    text: &str,
    to: Option<SocketAddr>,
    patience: Duration,
) -> io::Result<Seen> {
    match to {
        Some(to) => socket.send_to(text.as_bytes(), to)?,
        None => socket.send(text.as_bytes())?,
    };
    let deadline = Instant::now() + patience;
    let mut buffer = [0; 256];
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(Seen::Silence);
        }
        socket.set_read_timeout(Some(left))?;
        match socket.recv_from(&mut buffer) {
            Ok((length, from)) => {
                let said = String::from_utf8_lossy(&buffer[..length]);
                // An answer with another text is a late answer to an earlier one.
                if said.ends_with(&format!(" {text}")) {
                    let port = socket.local_addr()?.port();
                    return Ok(Seen::Answer(parse(&said, from), port));
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}
