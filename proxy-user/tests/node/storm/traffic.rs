// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The clients: each sends requests of one kind on one path, at its own pace, until `done` is set.

use std::{
    io::{self, BufRead, BufReader, ErrorKind, Write},
    net::{SocketAddr, TcpStream, UdpSocket},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread::sleep,
    time::{Duration, Instant},
};

use super::{
    kinds::{ClientKind, Kind},
    record::{Asked, Record},
    topology::target,
};
use crate::connection::repeated;

/// How long to wait for an answer: longer than a retransmission takes.
const ANSWER: Duration = Duration::from_secs(5);
/// The number of open connections of a client.
const HELD: usize = 3;
const IDLE: usize = 10;

/// A client.
pub(crate) struct Client<'a> {
    pub(crate) kind: Kind,
    pub(crate) way: ClientKind,
    /// The time between two new connections.
    pub(crate) pace: Duration,
    pub(crate) record: &'a Record,
    pub(crate) done: &'a AtomicBool,
}

/// Returns a number that no other request has.
fn nonce() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// The number of the backend in the answer to this request.
fn who(answer: &str, nonce: u64) -> io::Result<u8> {
    let fault = || io::Error::other(format!("the answer to {nonce} is {answer:?}"));
    let (by, rest) = answer.trim_end().split_once(' ').ok_or_else(fault)?;
    if rest != nonce.to_string() {
        return Err(fault());
    }
    by.parse().map_err(|_| fault())
}

/// A connection or socket for requests.
enum Line {
    Tcp(BufReader<TcpStream>, u32),
    /// A connected socket, and one that is not connected.
    Udp(UdpSocket),
    Unconnected(UdpSocket, SocketAddr),
}

impl Line {
    fn open(kind: Kind, way: ClientKind) -> io::Result<Self> {
        let to = target(kind, way);
        if !matches!(kind, Kind::Datagram | Kind::Talk | Kind::MovingTalk) {
            let stream = TcpStream::connect_timeout(&to, ANSWER)?;
            stream.set_read_timeout(Some(ANSWER))?;
            stream.set_nodelay(true)?;
            return Ok(Self::Tcp(BufReader::new(stream), 0));
        }
        let any = if way.is_v6() { "[::]:0" } else { "0.0.0.0:0" };
        let socket = UdpSocket::bind(any)?;
        socket.set_read_timeout(Some(ANSWER))?;
        // Unconnected sockets meet other socket hooks than connected ones.
        if way.is_at_sockets() || kind == Kind::Datagram {
            return Ok(Self::Unconnected(socket, to));
        }
        socket.connect(to)?;
        Ok(Self::Udp(socket))
    }

    fn local(&self) -> Option<SocketAddr> {
        let local = match self {
            Self::Tcp(stream, _) => stream.get_ref().local_addr(),
            Self::Udp(socket) | Self::Unconnected(socket, _) => socket.local_addr(),
        };
        local.ok()
    }

    fn ask(&mut self) -> io::Result<u8> {
        let nonce = nonce();
        let mut buffer = [0; 256];
        let (length, from) = match self {
            Self::Tcp(stream, _) => {
                stream
                    .get_mut()
                    .write_all(format!("{nonce}\n").as_bytes())?;
                let mut answer = String::new();
                if stream.read_line(&mut answer)? == 0 {
                    return Err(ErrorKind::UnexpectedEof.into());
                }
                return who(&answer, nonce);
            }
            Self::Udp(socket) => {
                socket.send(nonce.to_string().as_bytes())?;
                (socket.recv(&mut buffer)?, None)
            }
            Self::Unconnected(socket, to) => {
                socket.send_to(nonce.to_string().as_bytes(), *to)?;
                let (length, from) = socket.recv_from(&mut buffer)?;
                (length, Some((from, *to)))
            }
        };
        if let Some((from, to)) = from.filter(|(from, to)| from != to) {
            return Err(io::Error::other(format!("{to} was asked, {from} answers")));
        }
        who(&String::from_utf8_lossy(&buffer[..length]), nonce)
    }

    /// The number of segments retransmitted since the last call.
    fn repeated(&mut self) -> u32 {
        let Self::Tcp(stream, before) = self else {
            return 0;
        };
        let all = repeated(stream.get_ref());
        let new = all - *before;
        *before = all;
        new
    }
}

/// An open connection or socket: the backend that answers, and the time of its last answer.
struct OpenLine {
    line: Line,
    by: u8,
    last: Instant,
}

impl Client<'_> {
    /// Sends requests until the end.
    pub(crate) fn run(&self) {
        match self.kind {
            Kind::New | Kind::Datagram | Kind::Sticky | Kind::MovingNew => self.ask_anew(),
            Kind::Open | Kind::MovingOpen => self.keep(HELD, Duration::from_millis(100)),
            Kind::Talk | Kind::MovingTalk => self.keep(HELD, Duration::from_millis(100)),
            Kind::Idle => self.keep(IDLE, Duration::from_secs(1)),
        }
    }

    fn is_done(&self) -> bool {
        self.done.load(Ordering::Relaxed)
    }

    fn note(
        &self,
        line: Option<&mut Line>,
        of: (Instant, Instant),
        answer: io::Result<u8>,
    ) -> Asked {
        let (since, begun) = of;
        Asked {
            kind: self.kind,
            way: self.way,
            local: line.as_ref().and_then(|line| line.local()),
            since,
            begun,
            is_new: true,
            answer: answer.map_err(|error| error.to_string()),
            expected: None,
            repeated: line.map_or(0, Line::repeated),
        }
    }

    /// Opens a new connection and sends its first request.
    fn open(&self, since: Option<Instant>, expected: Option<u8>) -> Option<OpenLine> {
        let begun = Instant::now();
        let mut opened = Line::open(self.kind, self.way);
        let answer = match &mut opened {
            Ok(line) => line.ask(),
            Err(error) => Err(io::Error::new(error.kind(), error.to_string())),
        };
        let by = answer.as_ref().ok().copied();
        let mut asked = self.note(
            opened.as_mut().ok(),
            (since.unwrap_or(begun), begun),
            answer,
        );
        asked.expected = expected;
        self.record.note(&asked);
        let line = opened.ok()?;
        Some(OpenLine {
            line,
            by: by?,
            last: Instant::now(),
        })
    }

    fn ask_anew(&self) {
        let mut kept: Option<(u8, Instant)> = None;
        while !self.is_done() {
            let begun = Instant::now();
            let (by, last) = kept.unzip();
            let held = self.open(last, by);
            if let Some(held) = held.filter(|_| self.kind == Kind::Sticky) {
                // Counts from the beginning: a connection that began during an outage may have been
                // served on another path, which has its own affinity.
                kept = Some((held.by, begun));
            }
            sleep((begun + self.pace).saturating_duration_since(Instant::now()));
        }
    }

    /// Keeps this many connections open and uses one after another.
    fn keep(&self, count: usize, pace: Duration) {
        let mut lines: Vec<Option<OpenLine>> = (0..count).map(|_| None).collect();
        let mut next = 0;
        while !self.is_done() {
            let begun = Instant::now();
            let line = &mut lines[next % count];
            *line = match line.take() {
                None => self.open(None, None),
                Some(held) => self.ask_again(held),
            };
            next += 1;
            sleep((begun + pace).saturating_duration_since(Instant::now()));
        }
    }

    fn ask_again(&self, mut held: OpenLine) -> Option<OpenLine> {
        let begun = Instant::now();
        let answer = held.line.ask();
        let by = answer.as_ref().ok().copied();
        let mut asked = self.note(Some(&mut held.line), (held.last, begun), answer);
        asked.is_new = false;
        asked.expected = Some(held.by);
        self.record.note(&asked);
        held.by = by?;
        held.last = Instant::now();
        Some(held)
    }
}
