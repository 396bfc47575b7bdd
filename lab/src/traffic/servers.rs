// SPDX-License-Identifier: Apache-2.0 OR MIT
//! TCP, UDP and SCTP servers in the lab's network namespaces that report their own address and the
//! client's as they see it. One thread waits for the clients of all servers. Started by `flows` and
//! tests.

use std::{
    io::{self, BufReader, Read, Write},
    mem::MaybeUninit,
    net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use proxy_common::Protocol;
use socket2::{Domain, SockAddr, Socket, Type};
use tokio::{
    io::unix::AsyncFd,
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
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_io()
            .build();
        Ok(Self(runtime.context("start the servers' thread")?))
    }

    /// Serves an address and port in a namespace until the returned value is dropped.
    pub fn listen(
        &self,
        namespace: &NetNs,
        protocol: Protocol,
        at: SocketAddr,
    ) -> Result<Listening> {
        let socket = namespace
            .enter(|| open_when_free(protocol, at))?
            .with_context(|| {
                format!("listen on {at} {} in {}", protocol.name(), namespace.name())
            })?;
        let _runtime = self.0.enter();
        let task = match protocol {
            Protocol::UDP => self.0.spawn(udp(UdpSocket::from_std(socket.into())?, at)),
            Protocol::SCTP => {
                // SAFETY: the socket owns its descriptor and is not closed before it is dropped.
                let socket = unsafe { AsyncFd::register(socket) }?;
                self.0.spawn(sctp(socket, at))
            }
            _ => self.0.spawn(tcp(TcpListener::from_std(socket.into())?, at)),
        };
        Ok(Listening(task))
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.0.abort();
        // The thread may be using the socket now. Wait for it, so that the port is free when this
        // returns.
        while !self.0.is_finished() {
            thread::yield_now();
        }
    }
}

/// Listens at a port of every IPv4 address, for tokio. `backlog` clients may connect at once.
pub fn listen(port: u16, backlog: i32) -> io::Result<std::net::TcpListener> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    let at = SocketAddr::from((Ipv4Addr::UNSPECIFIED, port));
    socket.bind(&SockAddr::from(at))?;
    socket.listen(backlog)?;
    Ok(socket.into())
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

async fn udp(socket: UdpSocket, by: SocketAddr) {
    let mut buffer = vec![0; 65_536];
    loop {
        if let Ok((length, seen)) = socket.recv_from(&mut buffer).await
            && let Ok(Some(answer)) = probe::answer(&mut &buffer[..length], by, seen)
        {
            _ = socket.send_to(&answer, seen).await;
        }
    }
}

async fn sctp(socket: AsyncFd<Socket>, by: SocketAddr) {
    while let Ok(mut ready) = socket.readable().await {
        _ = ready.try_io(|socket| answer_init(socket.get_ref(), by));
    }
}

/// Answers one request. The client closes first, so that no port of the server is left in
/// TIME_WAIT.
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

/// Answers an INIT with an INIT ACK. Other packets and packets with wrong checksums get no answer.
fn answer_init(socket: &Socket, by: SocketAddr) -> io::Result<()> {
    let mut buffer = [MaybeUninit::new(0); 2048];
    let (length, from) = socket.recv_from(&mut buffer)?;
    // SAFETY: the whole buffer was initialised above.
    let received = unsafe { buffer[..length].assume_init_ref() };
    let (Some(bytes), Some(from)) = (sctp::payload(received, by), from.as_socket()) else {
        return Ok(());
    };
    let Some(packet) = sctp::parse(bytes) else {
        return Ok(());
    };
    let Chunk::Init { tag } = packet.chunk else {
        return Ok(());
    };
    if packet.destination_port != by.port() || packet.verification_tag != 0 {
        return Ok(());
    }
    let seen = SocketAddr::new(from.ip(), packet.source_port);
    let text = probe::write_answer(u64::from(tag), 0, by, seen, true);
    let answer = sctp::init_ack(by.port(), packet.source_port, tag, &text);
    // Not an error of reading, if it fails.
    _ = socket.send_to(&answer, &SockAddr::from(SocketAddr::new(from.ip(), 0)));
    Ok(())
}
