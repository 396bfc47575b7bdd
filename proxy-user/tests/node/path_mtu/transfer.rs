// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Large transfers both ways, and what each end has learned of the path by then.

use std::{
    io::{self, ErrorKind, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream, UdpSocket},
    os::fd::AsRawFd,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use socket2::SockRef;

use super::world::World;

const MIB: usize = 1 << 20;
/// Without the error a connection stands still; with it, it takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(4);
/// An answer that says that the one asked for was too large to be sent.
const REFUSED: &[u8] = b"too large";

/// The path MTU that each end's socket knows, in bytes.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Learned {
    pub(super) client: u32,
    pub(super) backend: u32,
}

/// Sends 1 MiB to the service and gets 1 MiB back, over one connection.
pub(super) fn stream(world: &World) -> io::Result<Learned> {
    let listener = world.at_the_backend(|| TcpListener::bind(world.backend()))?;
    // For accepting.
    SockRef::from(&listener).set_read_timeout(Some(PATIENCE))?;
    thread::scope(|scope| {
        let backend = scope.spawn(|| serve_stream(&listener));
        let service = world.service();
        let mut stream = world.at_the_client(|| TcpStream::connect_timeout(&service, PATIENCE))?;
        patient(&stream)?;
        let said = stream.write_all(&vec![1; MIB]);
        let mut answer = vec![0; MIB];
        let heard = said.and_then(|()| stream.read_exact(&mut answer));
        let client = path_mtu(&stream, service.is_ipv6());
        drop(stream);
        let backend = backend.join().expect("it does not panic");
        heard.map_err(|error| failed("the client", &error))?;
        Ok(Learned {
            client: client?,
            backend: backend.map_err(|error| failed("the backend", &error))?,
        })
    })
}

fn serve_stream(listener: &TcpListener) -> io::Result<u32> {
    let (mut stream, from) = listener.accept()?;
    patient(&stream)?;
    let mut request = vec![0; MIB];
    stream.read_exact(&mut request)?;
    stream.write_all(&request)?;
    // The client's end: it has read all.
    stream.read(&mut [0])?;
    path_mtu(&stream, from.is_ipv6())
}

fn patient(stream: &TcpStream) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))
}

fn failed(who: &str, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{who}: {error}"))
}

/// Sends datagrams that may not be cut until each end's kernel refuses large ones.
pub(super) fn datagrams(world: &World) -> io::Result<u32> {
    let service = world.service();
    let (v6, largest) = match service {
        SocketAddr::V4(_) => (false, vec![1; 1500 - 28]),
        SocketAddr::V6(_) => (true, vec![1; 1500 - 48]),
    };
    let server = world.at_the_backend(|| UdpSocket::bind(world.backend()))?;
    let any = if v6 { "[::]:0" } else { "0.0.0.0:0" };
    let client = world.at_the_client(|| UdpSocket::bind(any))?;
    for socket in [&server, &client] {
        never_cut(socket, v6)?;
        socket.set_read_timeout(Some(Duration::from_millis(50)))?;
    }
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| serve_datagrams(&server, &largest, &done));
        let learned = until("the client's kernel refuses no datagram", || {
            _ = client.recv(&mut [0; 2048]);
            is_too_large(&client.send_to(&largest, service))
        })
        .and_then(|()| client.connect(service))
        .and_then(|()| path_mtu(&client, v6));
        let refused = until("the backend's kernel refuses no datagram", || {
            _ = client.send_to(b"?", service);
            let mut answer = [0; 2048];
            let heard = client.recv(&mut answer);
            heard.is_ok_and(|length| &answer[..length] == REFUSED)
        });
        done.store(true, Ordering::Relaxed);
        refused.and(learned)
    })
}

/// Answers everything by the largest datagram that its interface takes, or says why not.
fn serve_datagrams(socket: &UdpSocket, largest: &[u8], done: &AtomicBool) {
    let mut request = [0; 2048];
    while !done.load(Ordering::Relaxed) {
        let Ok((_, from)) = socket.recv_from(&mut request) else {
            continue;
        };
        if is_too_large(&socket.send_to(largest, from)) {
            _ = socket.send_to(REFUSED, from);
        }
    }
}

fn until(otherwise: &str, mut so: impl FnMut() -> bool) -> io::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while !so() {
        if Instant::now() > deadline {
            return Err(io::Error::new(ErrorKind::TimedOut, otherwise));
        }
    }
    Ok(())
}

fn is_too_large(sent: &io::Result<usize>) -> bool {
    let error = sent.as_ref().err().and_then(io::Error::raw_os_error);
    error == Some(libc::EMSGSIZE)
}

/// Sets the bit "don't fragment" in all that the socket sends, and lets it send nothing that is too large for its path.
fn never_cut(socket: &UdpSocket, v6: bool) -> io::Result<()> {
    let (level, option, value) = if v6 {
        (
            libc::IPPROTO_IPV6,
            libc::IPV6_MTU_DISCOVER,
            libc::IPV6_PMTUDISC_DO,
        )
    } else {
        (
            libc::IPPROTO_IP,
            libc::IP_MTU_DISCOVER,
            libc::IP_PMTUDISC_DO,
        )
    };
    // SAFETY: the value is an integer that outlives the call.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            option,
            (&raw const value).cast(),
            size_of_val(&value) as u32,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// The MTU of a connected socket's path as its kernel knows it, in bytes.
fn path_mtu(socket: &impl AsRawFd, v6: bool) -> io::Result<u32> {
    let (level, option) = if v6 {
        (libc::IPPROTO_IPV6, libc::IPV6_MTU)
    } else {
        (libc::IPPROTO_IP, libc::IP_MTU)
    };
    let mut value: u32 = 0;
    let mut length = size_of_val(&value) as u32;
    // SAFETY: value and length outlive the call.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            level,
            option,
            (&raw mut value).cast(),
            &raw mut length,
        )
    };
    if result == 0 {
        Ok(value)
    } else {
        Err(io::Error::last_os_error())
    }
}
