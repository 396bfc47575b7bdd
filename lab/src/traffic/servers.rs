// SPDX-License-Identifier: Apache-2.0 OR MIT
//! TCP, UDP and SCTP servers in the lab's network namespaces that report their own address and the
//! client's as they see it. One thread waits for the clients of all servers. Started by `flows` and
//! tests.

use std::{
    collections::BTreeMap,
    io::{self, BufReader, Read, Write},
    mem::MaybeUninit,
    net::{Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket},
    os::fd::{AsFd, BorrowedFd},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use nix::sys::{
    epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout},
    eventfd::{EfdFlags, EventFd},
};
use proxy_common::Protocol;
use socket2::{Domain, SockAddr, Socket, Type};

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
const STOP: u64 = 0;

/// The thread of all servers. Dropping it ends the servers.
pub struct Servers {
    shared: Arc<Shared>,
    stop: EventFd,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    epoll: Epoll,
    listeners: Mutex<BTreeMap<u64, Arc<Listener>>>,
    next: AtomicU64,
}

/// A listening server. Dropping it closes the server's socket.
pub struct Listening {
    shared: Arc<Shared>,
    token: u64,
}

enum Listener {
    Tcp(TcpListener, SocketAddr),
    Udp(UdpSocket, SocketAddr),
    Sctp(Socket, SocketAddr),
}

impl Servers {
    pub fn start() -> Result<Self> {
        let epoll =
            Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).context("make an epoll instance")?;
        let stop = EventFd::from_flags(EfdFlags::EFD_CLOEXEC).context("make an eventfd")?;
        epoll
            .add(&stop, EpollEvent::new(EpollFlags::EPOLLIN, STOP))
            .context("watch the eventfd")?;
        let shared = Arc::new(Shared {
            epoll,
            listeners: Mutex::default(),
            next: AtomicU64::new(STOP + 1),
        });
        let of_thread = Arc::clone(&shared);
        let thread = thread::Builder::new()
            .name("servers".to_owned())
            .spawn(move || of_thread.serve())
            .context("start the servers' thread")?;
        Ok(Self {
            shared,
            stop,
            thread: Some(thread),
        })
    }

    /// Serves an address and port in a namespace until the returned value is dropped.
    pub fn listen(
        &self,
        namespace: &NetNs,
        protocol: Protocol,
        at: SocketAddr,
    ) -> Result<Listening> {
        let listener = namespace
            .enter(|| Listener::open_when_free(protocol, at))?
            .with_context(|| {
                format!("listen on {at} {} in {}", protocol.name(), namespace.name())
            })?;
        let token = self.shared.next.fetch_add(1, Ordering::Relaxed);
        let listener = Arc::new(listener);
        self.shared.listeners().insert(token, Arc::clone(&listener));
        self.shared
            .epoll
            .add(listener.fd(), EpollEvent::new(EpollFlags::EPOLLIN, token))
            .context("watch a listener")?;
        Ok(Listening {
            shared: Arc::clone(&self.shared),
            token,
        })
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        let _ = self.stop.write(1);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        if let Some(listener) = self.shared.listeners().remove(&self.token) {
            let _ = self.shared.epoll.delete(listener.fd());
            // The thread may be using the listener now. Wait for it, so that the port is free when
            // this returns.
            while Arc::strong_count(&listener) > 1 {
                thread::yield_now();
            }
        }
    }
}

impl Shared {
    fn listeners(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<Listener>>> {
        self.listeners
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(&self) {
        let mut events = [EpollEvent::empty(); 32];
        loop {
            let ready = match self.epoll.wait(&mut events, EpollTimeout::NONE) {
                Ok(ready) => ready,
                Err(nix::errno::Errno::EINTR) => continue,
                Err(_) => return,
            };
            for event in &events[..ready] {
                if event.data() == STOP {
                    return;
                }
                let listener = self.listeners().get(&event.data()).cloned();
                if let Some(listener) = listener {
                    // On an error the client gets no answer and reports that.
                    let _ = listener.serve();
                }
            }
        }
    }
}

impl Listener {
    /// Opens a server's socket. Retries while the address is in use. A process that another case is
    /// starting has copies of all descriptors until its program runs, also of a socket that is
    /// closed here.
    fn open_when_free(protocol: Protocol, at: SocketAddr) -> io::Result<Self> {
        let deadline = Instant::now() + TO_BE_FREE;
        loop {
            match Self::open(protocol, at) {
                Err(error)
                    if error.kind() == io::ErrorKind::AddrInUse && Instant::now() < deadline =>
                {
                    thread::sleep(Duration::from_millis(5));
                }
                opened => return opened,
            }
        }
    }
    fn open(protocol: Protocol, at: SocketAddr) -> io::Result<Self> {
        let domain = Domain::for_address(at);
        let (kind, number, bound) = match protocol {
            Protocol::UDP => (Type::DGRAM, None, at),
            Protocol::SCTP => (
                Type::RAW,
                Some(sctp::PROTOCOL.into()),
                SocketAddr::new(at.ip(), 0),
            ),
            _ => (Type::STREAM, None, at),
        };
        let socket = Socket::new(domain, kind, number)?;
        if at.is_ipv6() && protocol != Protocol::SCTP {
            socket.set_only_v6(true)?;
        }
        if protocol == Protocol::TCP {
            socket.set_reuse_address(true)?;
        }
        socket.set_nonblocking(true)?;
        socket.bind(&SockAddr::from(bound))?;
        Ok(match protocol {
            Protocol::UDP => Self::Udp(socket.into(), at),
            Protocol::SCTP => Self::Sctp(socket, at),
            _ => {
                socket.listen(1024)?;
                Self::Tcp(socket.into(), at)
            }
        })
    }

    fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(socket, _) => socket.as_fd(),
            Self::Udp(socket, _) => socket.as_fd(),
            Self::Sctp(socket, _) => socket.as_fd(),
        }
    }

    fn serve(&self) -> io::Result<()> {
        match self {
            Self::Tcp(listener, by) => {
                let (stream, seen) = listener.accept()?;
                let by = *by;
                thread::Builder::new().spawn(move || {
                    // On an error the client gets no answer and reports that.
                    let _ = converse(stream, by, seen);
                })?;
            }
            Self::Udp(socket, by) => {
                let mut buffer = vec![0; 65_536];
                let (length, seen) = socket.recv_from(&mut buffer)?;
                if let Some(answer) = probe::answer(&mut &buffer[..length], *by, seen)? {
                    socket.send_to(&answer, seen)?;
                }
            }
            Self::Sctp(socket, by) => answer_init(socket, *by)?,
        }
        Ok(())
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
    let Ok(packet) = sctp::parse(bytes) else {
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
    socket.send_to(&answer, &SockAddr::from(SocketAddr::new(from.ip(), 0)))?;
    Ok(())
}
