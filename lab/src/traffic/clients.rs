// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Clients in the lab's namespaces: one connection each, told apart by what became of it. Called by the
//! conformance runner, the demo and tests.

use std::{
    io::{self, BufReader, ErrorKind, Read, Write},
    mem::MaybeUninit,
    net::{IpAddr, Shutdown, SocketAddr, TcpStream, UdpSocket},
    os::fd::AsRawFd,
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use nix::sys::socket::{setsockopt, sockopt};
use proxy_common::Protocol;
use socket2::{Domain, SockAddr, Socket, Type};

use crate::{
    node::netns::NetNs,
    traffic::{
        probe::{self, Attempt, Outcome},
        sctp::{self, Chunk},
    },
};

/// Within this an answer or a refusal has come, or it counts as silence.
pub const PATIENCE: Duration = Duration::from_secs(1);
/// For the rest of a conversation that has begun.
const LONG_PATIENCE: Duration = Duration::from_secs(3);
/// A kernel with SCTP of its own sends an ABORT beside our server's answer.
const ABORT_GRACE: Duration = Duration::from_millis(50);

const FIRST_FRESH_PORT: u16 = 33_000;
const FRESH_PORTS: u16 = 27_000;

/// Who calls, from where.
#[derive(Clone, Copy)]
pub struct Client<'a> {
    pub namespace: &'a NetNs,
    pub address: IpAddr,
    /// 0: any.
    pub port: u16,
    /// How long to wait for the first answer.
    pub patience: Duration,
}

impl<'a> Client<'a> {
    pub fn new(namespace: &'a NetNs, address: IpAddr) -> Self {
        Self {
            namespace,
            address,
            port: 0,
            patience: PATIENCE,
        }
    }

    /// Opens one connection and asks who answers, with `length` bytes to carry each way.
    pub fn call(&self, protocol: Protocol, to: SocketAddr, length: usize) -> Result<Attempt> {
        self.namespace
            .enter(|| match protocol {
                Protocol::UDP => self.udp(to, length),
                Protocol::SCTP => self.sctp(to),
                _ => self.tcp(to, length),
            })?
            .with_context(|| {
                format!(
                    "call {to} {} from {} in {}",
                    protocol.name(),
                    self.address,
                    self.namespace.name()
                )
            })
    }

    fn tcp(&self, to: SocketAddr, length: usize) -> Result<Attempt> {
        let socket = self.socket(Type::STREAM, None)?;
        let began = Instant::now();
        let connected = socket.connect_timeout(&SockAddr::from(to), self.patience);
        let after = began.elapsed();
        let source = self.local_address(&socket)?;
        let stream = TcpStream::from(socket);
        let outcome = match connected {
            Err(error) => failure(&error),
            Ok(()) => match self.converse(&stream, to, length) {
                Ok(outcome) => outcome,
                Err(error) => Outcome::Broken(format!("connected, then {error}")),
            },
        };
        if self.port != 0 {
            disconnect(&stream)?;
        }
        Ok(Attempt {
            source,
            after,
            outcome,
            sent: Vec::new(),
            left: None,
        })
    }

    fn converse(&self, stream: &TcpStream, to: SocketAddr, length: usize) -> io::Result<Outcome> {
        stream.set_read_timeout(Some(LONG_PATIENCE))?;
        stream.set_write_timeout(Some(LONG_PATIENCE))?;
        stream.set_nodelay(true)?;
        let nonce = probe::nonce();
        let mut output = stream;
        output.write_all(&probe::request(nonce, length))?;
        let mut input = BufReader::new(stream);
        let answer = probe::read_answer(&mut input, nonce, to)?;
        if self.port == 0 {
            stream.shutdown(Shutdown::Write)?;
            input.read_to_end(&mut Vec::new())?;
        }
        Ok(answer.map_or_else(
            || Outcome::Broken("connected, then an answer to another request".to_owned()),
            Outcome::Answered,
        ))
    }

    fn udp(&self, to: SocketAddr, length: usize) -> Result<Attempt> {
        let socket = self.datagram_socket(to)?;
        report_errors(&socket, to)?;
        let source = self.local_address(&socket)?;
        let nonce = probe::nonce();
        let sent = probe::request(nonce, length);
        let socket = UdpSocket::from(socket);
        let began = Instant::now();
        let outcome = match socket.send_to(&sent, to) {
            Ok(_) => self.await_datagram(&socket, nonce, began)?,
            Err(error) => failure(&error),
        };
        Ok(Attempt {
            source,
            after: began.elapsed(),
            outcome,
            sent,
            left: None,
        })
    }

    /// The socket is not connected, so that an answer from a wrong address is seen.
    fn await_datagram(
        &self,
        socket: &UdpSocket,
        nonce: u64,
        began: Instant,
    ) -> io::Result<Outcome> {
        let mut buffer = vec![0; 65_536];
        while let Some(left) = self
            .patience
            .checked_sub(began.elapsed())
            .filter(|left| !left.is_zero())
        {
            socket.set_read_timeout(Some(left))?;
            match socket.recv_from(&mut buffer) {
                Ok((length, from)) => {
                    // A short datagram is no answer; one to an earlier request is passed over.
                    if let Ok(Some(answer)) =
                        probe::read_answer(&mut &buffer[..length], nonce, from)
                    {
                        return Ok(Outcome::Answered(answer));
                    }
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Ok(failure(&error)),
            }
        }
        Ok(Outcome::Silence)
    }

    fn sctp(&self, to: SocketAddr) -> Result<Attempt> {
        let socket = self.socket(Type::RAW, Some(sctp::PROTOCOL))?;
        report_errors(&socket, to)?;
        let nonce = probe::nonce();
        let tag = (nonce ^ nonce >> 16) as u32 | 1;
        let port = if self.port == 0 {
            fresh_port()
        } else {
            self.port
        };
        let packet = sctp::init(port, to.port(), tag);
        let began = Instant::now();
        let destination = SockAddr::from(SocketAddr::new(to.ip(), 0));
        let outcome = match socket.send_to(&packet, &destination) {
            Ok(_) => self.await_init_ack(&socket, to, port, tag, began)?,
            Err(error) => failure(&error),
        };
        Ok(Attempt {
            source: SocketAddr::new(self.address, port),
            after: began.elapsed(),
            outcome,
            sent: packet[4..].to_vec(),
            left: None,
        })
    }

    fn await_init_ack(
        &self,
        socket: &Socket,
        to: SocketAddr,
        port: u16,
        tag: u32,
        began: Instant,
    ) -> io::Result<Outcome> {
        let mut deadline = began + self.patience;
        let mut ending = Outcome::Silence;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(ending);
            }
            socket.set_read_timeout(Some(left))?;
            let mut buffer = [MaybeUninit::new(0); 2048];
            let (length, from) = match socket.recv_from(&mut buffer) {
                Ok(received) => received,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => match failure(&error) {
                    Outcome::Silence => return Ok(ending),
                    other => return Ok(other),
                },
            };
            // SAFETY: the whole buffer was initialised above.
            let received = unsafe { buffer[..length].assume_init_ref() };
            let (Some(bytes), Some(from)) = (sctp::payload(received, to), from.as_socket()) else {
                continue;
            };
            let packet = match sctp::parse(bytes) {
                Ok(packet) if packet.destination_port == port => packet,
                Ok(_) => continue,
                Err(fault) => return Ok(Outcome::Broken(format!("an SCTP answer with {fault:?}"))),
            };
            match packet.chunk {
                Chunk::InitAck { cookie } if packet.verification_tag == tag => {
                    let from = SocketAddr::new(from.ip(), packet.source_port);
                    let answer = probe::read_answer(&mut &cookie[..], u64::from(tag), from)?;
                    return Ok(answer.map_or_else(
                        || Outcome::Broken("an INIT ACK that is not our server's".to_owned()),
                        Outcome::Answered,
                    ));
                }
                Chunk::Abort => {
                    ending = Outcome::Refused;
                    deadline = deadline.min(Instant::now() + ABORT_GRACE);
                }
                _ => {}
            }
        }
    }

    fn datagram_socket(&self, to: SocketAddr) -> io::Result<Socket> {
        loop {
            let client = if self.port == 0 {
                Self {
                    port: fresh_port(),
                    ..*self
                }
            } else {
                *self
            };
            let mut socket = client.socket(Type::DGRAM, None);
            if let (Ok(bound), true) = (&socket, self.address.is_loopback())
                && let Err(error) = bound.bind(&SockAddr::from(SocketAddr::new(
                    unspecified(to),
                    client.port,
                )))
            {
                socket = Err(error);
            }
            match socket {
                Err(error) if error.kind() == ErrorKind::AddrInUse && self.port == 0 => {}
                other => return other,
            }
        }
    }

    /// A socket at the client's address and port. Loopback clients just connect (conformance/FORMAT.md).
    fn socket(&self, kind: Type, protocol: Option<i32>) -> io::Result<Socket> {
        let at = SocketAddr::new(self.address, if kind == Type::RAW { 0 } else { self.port });
        let socket = Socket::new(Domain::for_address(at), kind, protocol.map(Into::into))?;
        if self.port != 0 && kind != Type::RAW {
            socket.set_reuse_address(true)?;
        }
        if !self.address.is_loopback() {
            socket.bind(&SockAddr::from(at))?;
        }
        Ok(socket)
    }

    fn local_address(&self, socket: &Socket) -> io::Result<SocketAddr> {
        let local = socket.local_addr()?.as_socket();
        let local = local.ok_or_else(|| io::Error::other("a socket without an address"))?;
        let ip = if local.ip().is_unspecified() {
            self.address
        } else {
            local.ip()
        };
        Ok(SocketAddr::new(ip, local.port()))
    }

    /// GETs a path over HTTP; status and body.
    pub fn http_get(&self, to: SocketAddr, path: &str) -> Result<(u16, String)> {
        let ask = || -> io::Result<String> {
            let socket = self.socket(Type::STREAM, None)?;
            socket.connect_timeout(&SockAddr::from(to), self.patience)?;
            let mut stream = TcpStream::from(socket);
            stream.set_read_timeout(Some(LONG_PATIENCE))?;
            write!(
                stream,
                "GET {path} HTTP/1.1\r\nHost: {to}\r\nConnection: close\r\n\r\n"
            )?;
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer)?;
            Ok(String::from_utf8_lossy(&answer).into_owned())
        };
        let attempt = || format!("GET http://{to}{path} from {}", self.address);
        let answer = self.namespace.enter(ask)?.with_context(attempt)?;
        let status = answer
            .split_whitespace()
            .nth(1)
            .and_then(|status| status.parse().ok());
        let status =
            status.with_context(|| format!("{}: no HTTP answer: {answer:?}", attempt()))?;
        let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        Ok((status, body.to_owned()))
    }
}

/// Ends a connection by a reset, which leaves no TIME_WAIT: the port can be used again at once. Closing
/// would not do: a process that another thread is starting may still hold the socket.
fn disconnect(stream: &TcpStream) -> io::Result<()> {
    let nobody = libc::sockaddr {
        sa_family: libc::AF_UNSPEC as u16,
        sa_data: [0; 14],
    };
    // SAFETY: the address lives through the call, and its length is right.
    let done = unsafe {
        libc::connect(
            stream.as_raw_fd(),
            &raw const nobody,
            size_of_val(&nobody) as u32,
        )
    };
    if done == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// A port that no earlier flow of datagrams had: chosen by chance it might be one that is remembered,
/// and keeps its endpoint.
fn fresh_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let next = NEXT.fetch_add(1, Ordering::Relaxed) % u32::from(FRESH_PORTS);
    FIRST_FRESH_PORT + u16::try_from(next).unwrap_or_default()
}

const fn unspecified(like: SocketAddr) -> IpAddr {
    match like {
        SocketAddr::V4(_) => IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED),
        SocketAddr::V6(_) => IpAddr::V6(std::net::Ipv6Addr::UNSPECIFIED),
    }
}

/// Makes ICMP errors show on a socket that is not connected.
fn report_errors(socket: &Socket, to: SocketAddr) -> io::Result<()> {
    if to.is_ipv4() {
        setsockopt(socket, sockopt::Ipv4RecvErr, &true)?;
    } else {
        setsockopt(socket, sockopt::Ipv6RecvErr, &true)?;
    }
    Ok(())
}

/// What a socket's error says about the network.
fn failure(error: &io::Error) -> Outcome {
    match error.kind() {
        // ICMP's port unreachable and TCP's reset, and nothing else, become this.
        ErrorKind::ConnectionRefused => Outcome::Refused,
        ErrorKind::TimedOut | ErrorKind::WouldBlock => Outcome::Silence,
        _ if error.raw_os_error() == Some(libc::EPERM) => Outcome::Denied,
        _ => Outcome::Unreachable(error.to_string()),
    }
}
