// SPDX-License-Identifier: Apache-2.0 OR MIT
//! TCP, UDP and SCTP servers in the lab's network namespaces that report their own address and the
//! client's as they see it. One thread waits for the clients of all servers. Started by `flows` and
//! tests.

use std::{
    io::{self, BufReader, Read, Write},
    net::{Shutdown, SocketAddr, TcpStream},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use proxy_common::Protocol;
use socket2::{Domain, SockAddr, Socket, Type};
use tokio::{
    net::{TcpListener, UdpSocket},
    runtime::Runtime,
    task::JoinHandle,
};

use crate::{
    node::netns::NetNs,
    traffic::{
        probe,
        sctp::{self, Chunk},
    },
};

/// How long a server waits for the rest of a request.
const PATIENCE: Duration = Duration::from_secs(3);
const TO_BE_FREE: Duration = Duration::from_secs(2);

/// The thread of all servers. Dropping it ends the servers.
pub struct Servers(Runtime);

/// A listening server. Dropping it closes the server's socket.
pub struct Listening(JoinHandle<()>);

impl Servers {
    pub fn start() -> Result<Self> {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(1).enable_io().build();
        Ok(Self(runtime.context("start the servers' thread")?))
    }

    /// Serves an address and port in a namespace until the returned value is dropped.
    pub fn listen(&self, host: &NetNs, protocol: Protocol, at: SocketAddr) -> Result<Listening> {
        let socket = host
            .enter(|| open_when_free(protocol, at))?
            .with_context(|| format!("listen on {at} {} in {}", protocol.name(), host.name()))?;
        let _runtime = self.0.enter();
        let task = match protocol {
            Protocol::TCP => self.0.spawn(tcp(TcpListener::from_std(socket.into())?, at)),
            // tokio's UdpSocket sends and receives over a raw socket as well.
            _ => {
                let is_udp = protocol == Protocol::UDP;
                let answer: Answer = if is_udp { answer } else { answer_init };
                let socket = UdpSocket::from_std(socket.into())?;
                self.0.spawn(datagrams(socket, at, answer))
            }
        };
        Ok(Listening(task))
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.0.abort();
        // The thread may be using the socket now. Wait, so that the port is free afterwards.
        while !self.0.is_finished() {
            thread::yield_now();
        }
    }
}

/// Opens a server's socket. Retries while the address is in use. A process that another case is
/// starting has copies of all descriptors until its program runs, also of a socket that is closed
/// here.
fn open_when_free(protocol: Protocol, at: SocketAddr) -> io::Result<Socket> {
    let deadline = Instant::now() + TO_BE_FREE;
    loop {
        match open(protocol, at) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && Instant::now() < deadline => {
                thread::sleep(Duration::from_millis(5));
            }
            opened => return opened,
        }
    }
}

fn open(protocol: Protocol, at: SocketAddr) -> io::Result<Socket> {
    let (kind, number, port) = match protocol {
        Protocol::UDP => (Type::DGRAM, None, at.port()),
        Protocol::SCTP => (Type::RAW, Some(sctp::PROTOCOL.into()), 0),
        _ => (Type::STREAM, None, at.port()),
    };
    let socket = Socket::new(Domain::for_address(at), kind, number)?;
    if at.is_ipv6() && protocol != Protocol::SCTP {
        socket.set_only_v6(true)?;
    }
    if protocol == Protocol::TCP {
        socket.set_reuse_address(true)?;
    }
    socket.set_nonblocking(true)?;
    socket.bind(&SockAddr::from(SocketAddr::new(at.ip(), port)))?;
    if protocol == Protocol::TCP {
        socket.listen(1024)?;
    }
    Ok(socket)
}

// On an error a client gets no answer and reports that.

async fn tcp(listener: TcpListener, by: SocketAddr) {
    loop {
        let accepted = listener.accept().await;
        let accepted = accepted.and_then(|(stream, seen)| Ok((stream.into_std()?, seen)));
        if let Ok((stream, seen)) = accepted {
            _ = thread::Builder::new().spawn(move || _ = converse(stream, by, seen));
        }
    }
}

async fn datagrams(socket: UdpSocket, by: SocketAddr, answer: Answer) {
    let mut buffer = vec![0; 65_536];
    loop {
        if let Ok((length, from)) = socket.recv_from(&mut buffer).await
            && let Some(answer) = answer(&buffer[..length], by, from)
        {
            _ = socket.send_to(&answer, from).await;
        }
    }
}

/// Answers one request. The client closes first, so that the server has no TIME_WAIT.
fn converse(stream: TcpStream, by: SocketAddr, seen: SocketAddr) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.set_nodelay(true)?;
    let mut input = BufReader::new(&stream);
    if let Some(answer) = probe::answer(&mut input, by, seen)? {
        (&stream).write_all(&answer)?;
        input.read_to_end(&mut Vec::new())?;
    }
    stream.shutdown(Shutdown::Both)
}

/// Makes the answer to a received packet; None if it is no request. Gets both addresses.
type Answer = fn(&[u8], SocketAddr, SocketAddr) -> Option<Vec<u8>>;

fn answer(mut received: &[u8], by: SocketAddr, seen: SocketAddr) -> Option<Vec<u8>> {
    probe::answer(&mut received, by, seen).ok()?
}

/// Answers an INIT with an INIT ACK. Other packets and packets with wrong checksums get no answer.
fn answer_init(received: &[u8], by: SocketAddr, from: SocketAddr) -> Option<Vec<u8>> {
    let packet = sctp::parse(sctp::payload(received, by)?)?;
    let Chunk::Init { tag } = packet.chunk else {
        return None;
    };
    if packet.destination_port != by.port() || packet.verification_tag != 0 {
        return None;
    }
    let seen = SocketAddr::new(from.ip(), packet.source_port);
    let text = probe::write_answer(u64::from(tag), 0, by, seen, true);
    Some(sctp::init_ack(by.port(), packet.source_port, tag, &text))
}
