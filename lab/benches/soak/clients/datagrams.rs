// SPDX-License-Identifier: Apache-2.0 OR MIT
//! UDP clients: with a socket for each request, with one socket for all, one-way senders, one
//! request with a long stream of answers, and answers that are cut into fragments or segments.

use std::{
    collections::VecDeque,
    io::{self, ErrorKind},
    net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket},
    ops::Range,
    time::{Duration, Instant},
};

use lab::lock;

use super::{Answer, Calls, Client, Kept, any, ensure_same, nonce};
use crate::{record::Begun, servers::SEGMENTS, world::v4_of};

/// A datagram or an answer that takes longer counts as lost. A busy machine may stall for a second.
const PATIENCE: Duration = Duration::from_secs(3);
pub(super) const LENGTH: u64 = 100;
/// Length of a large answer in bytes: more than fit into two packets.
pub(super) const LARGE: u64 = 4000;
/// Datagrams of one stream of answers, and milliseconds between two of them.
const STREAM: u64 = 900;
const PERIOD: u64 = 50;
/// A one-way sender checks that a datagram has arrived after this many later datagrams.
const LATER: u64 = 30;

/// A UDP socket, connected or not.
struct Datagrams {
    socket: UdpSocket,
    to: SocketAddr,
    is_connected: bool,
}

impl Datagrams {
    fn open(begun: &mut Begun, is_connected: bool) -> io::Result<Self> {
        let socket = UdpSocket::bind((begun.from.unwrap_or(any(begun.to)), 0))?;
        begun.local = Some(socket.local_addr()?);
        if is_connected {
            socket.connect(begun.to)?;
        }
        Ok(Self {
            socket,
            to: begun.to,
            is_connected,
        })
    }

    fn send(&self, request: &str) -> io::Result<()> {
        let request = request.as_bytes();
        let sent = match self.is_connected {
            true => self.socket.send(request),
            false => self.socket.send_to(request, self.to),
        };
        let named = |error: io::Error| {
            let kind = match error.raw_os_error() {
                Some(libc::EDESTADDRREQ) => ErrorKind::ConnectionAborted,
                _ => error.kind(),
            };
            io::Error::new(kind, format!("send: {error}"))
        };
        sent.map(drop).map_err(named)
    }

    /// Waits for the next answer with one of these numbers. Returns it and its length in bytes.
    fn receive(&self, numbers: Range<u64>) -> io::Result<(Answer, usize)> {
        let deadline = Instant::now() + PATIENCE;
        let mut buffer = vec![0; 65_536];
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::Error::new(ErrorKind::TimedOut, "no answer within 3 s"));
            }
            self.socket.set_read_timeout(Some(left))?;
            let (length, from) = match self.socket.recv_from(&mut buffer) {
                Ok(received) => received,
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) =>
                {
                    continue;
                }
                Err(error) => {
                    let text = format!("receive: {error}");
                    return Err(io::Error::new(error.kind(), text));
                }
            };
            let to = self.to;
            if from != to {
                let text = format!("{from} answers, {to} was asked");
                return Err(io::Error::other(text));
            }
            let answer = Answer::parse(&String::from_utf8_lossy(&buffer[..length]))?;
            // An answer to an earlier request may come late: skip it.
            if numbers.contains(&answer.number) {
                return Ok((answer, length));
            }
        }
    }

    fn ask(&self, calls: &Calls<'_>, verb: &str, length: u64) -> io::Result<(Answer, usize)> {
        let number = nonce();
        self.send(&calls.request(verb, [number, length, PERIOD]))?;
        let (answer, length) = self.receive(number..number + 1)?;
        calls.ensure_local(&answer, self.socket.local_addr()?)?;
        Ok((answer, length))
    }
}

/// A client with a new socket for each request, alternately connected and not, as DNS resolvers do.
#[derive(Default)]
pub(super) struct Queries {
    count: u64,
}

impl Client for Queries {
    fn exchange(&mut self, calls: &mut Calls<'_>) {
        self.count += 1;
        calls.exchange(None, |calls, begun| {
            let socket = Datagrams::open(begun, self.count.is_multiple_of(2))?;
            socket.ask(calls, "ask", LENGTH)
        });
    }
}

/// A client with one socket for all requests.
pub(super) struct Socket {
    socket: Kept<Datagrams>,
    is_connected: bool,
    verb: &'static str,
    length: u64,
}

impl Socket {
    pub(super) fn boxed(is_connected: bool, verb: &'static str, length: u64) -> Box<dyn Client> {
        Box::new(Self {
            socket: None,
            is_connected,
            verb,
            length,
        })
    }

    fn ask(&self, socket: &Datagrams, calls: &Calls<'_>) -> io::Result<()> {
        let (answer, length) = socket.ask(calls, self.verb, self.length)?;
        if self.verb == "segments" {
            for _ in 1..SEGMENTS {
                socket.receive(answer.number..answer.number + 1)?;
            }
        }
        if length < self.length as usize {
            let text = format!("{length} of {} bytes came", self.length);
            return Err(io::Error::other(text));
        }
        Ok(())
    }
}

impl Client for Socket {
    /// The socket is kept even if there is no answer: many programs never open another one. But a
    /// connected socket of the node is closed when its endpoint goes: the client connects again.
    fn exchange(&mut self, calls: &mut Calls<'_>) {
        let kept = self.socket.take();
        // Without a proxy, the endpoint may have been removed.
        let serves = |to: IpAddr| calls.world.cluster.serves(calls.service, v4_of(to));
        let kept = kept.filter(|(socket, _)| calls.frontend.is_some() || serves(socket.to.ip()));
        let may_be_closed = kept.is_some() && calls.endpoints_go && self.is_connected;
        let is_closed = |error: &io::Error| error.kind() == ErrorKind::ConnectionAborted;
        let before = kept.as_ref().map(|(_, begun)| *begun);
        calls.exchange(before, |calls, begun| {
            let mut socket = match kept {
                Some((socket, _)) => socket,
                None => Datagrams::open(begun, self.is_connected)?,
            };
            let mut outcome = self.ask(&socket, calls);
            if may_be_closed && outcome.as_ref().is_err_and(is_closed) {
                socket = Datagrams::open(begun, true)?;
                outcome = self.ask(&socket, calls);
            }
            self.socket = Some((socket, *begun));
            outcome
        });
    }
}

/// A client that sends datagrams that nobody answers, from one socket. All must arrive at one pod.
#[derive(Default)]
pub(super) struct Simplex {
    socket: Kept<Datagrams>,
    sender: u64,
    sent: u64,
    /// When the datagrams were sent of which nothing is known yet.
    times: VecDeque<Instant>,
    pod: Option<Ipv4Addr>,
}

impl Simplex {
    /// Sends a datagram and checks an earlier one. If that has failed, `begun` says when.
    fn send(&mut self, calls: &mut Calls<'_>, begun: &mut Begun) -> io::Result<()> {
        let (socket, _) = match &self.socket {
            Some(kept) => kept,
            None => {
                self.sender = nonce();
                &*self.socket.insert((Datagrams::open(begun, false)?, *begun))
            }
        };
        self.sent += 1;
        self.times.push_back(begun.began);
        socket.send(&calls.request("one-way", [self.sender, self.sent, 0]))?;
        let Some(earlier) = self.sent.checked_sub(LATER).filter(|number| *number > 0) else {
            return Ok(());
        };
        let now = *begun;
        begun.began = self.times.pop_front().unwrap_or(now.began);
        begun.failed = Some(begun.began + PATIENCE);
        let lost = || io::Error::other(format!("datagram {earlier} came to nobody"));
        let world = calls.world;
        let pod = lock(&world.arrivals).remove(&(self.sender, earlier));
        let pod = pod.ok_or_else(lost)?;
        let serves = |pod: &Ipv4Addr| world.cluster.serves(calls.service, *pod);
        ensure_same(self.pod.replace(pod).filter(serves), pod)
            .map_err(|error| io::Error::other(format!("datagram {earlier}: {error}")))?;
        *begun = now;
        Ok(())
    }
}

impl Client for Simplex {
    fn exchange(&mut self, calls: &mut Calls<'_>) {
        let kept = self.socket.as_ref().map(|(_, begun)| *begun);
        calls.exchange(kept, |calls, begun| self.send(calls, begun));
    }
}

/// A client that sends one request and receives a long stream of answers; none may be lost.
#[derive(Default)]
pub(super) struct Question(Kept<(Datagrams, Range<u64>)>);

impl Client for Question {
    fn exchange(&mut self, calls: &mut Calls<'_>) {
        calls.exchange_on(
            &mut self.0,
            |calls, begun| {
                let number = nonce();
                let socket = Datagrams::open(begun, number.is_multiple_of(2))?;
                socket.send(&calls.request("stream", [number, STREAM, PERIOD]))?;
                Ok((socket, number..number + STREAM))
            },
            // The numbers are those of the answers that have not come yet.
            |_, (socket, numbers)| {
                let (answer, _) = socket.receive(numbers.clone())?;
                let lost = answer.number - numbers.start;
                if lost > 0 {
                    return Err(io::Error::other(format!("{lost} answers are lost")));
                }
                numbers.start += 1;
                Ok(!numbers.is_empty())
            },
        );
    }
}
