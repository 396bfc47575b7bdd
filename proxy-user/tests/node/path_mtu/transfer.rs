// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Large transfers in both directions, and the path MTU that each end has learned from them.

use std::{
    io::{self, ErrorKind, Read, Write},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    os::fd::AsRawFd,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use socket2::SockRef;

use super::world::{Through, World};
use crate::connection::{failed, limit};

const MIB: usize = 1 << 20;
/// How long to wait. A transfer stalls if its ICMP error is lost; otherwise it takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(4);
/// The answer that is sent instead of one that is too large.
const REFUSED: &[u8] = b"too large";

/// The path MTU that each end's socket knows, in bytes.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Learned {
    pub(super) client: u32,
    pub(super) backend: u32,
}

/// Sends 1 MiB to the service and gets 1 MiB back, over one connection.
pub(super) fn stream(world: &World) -> io::Result<Learned> {
    let listener = world.at_the_backend(|| TcpListener::bind(world.backend))?;
    // The timeout is for `accept`.
    SockRef::from(&listener).set_read_timeout(Some(PATIENCE))?;
    thread::scope(|scope| {
        let backend = scope.spawn(|| serve_stream(&listener));
        let service = world.service;
        let mut stream = world.at_the_client(|| TcpStream::connect_timeout(&service, PATIENCE))?;
        limit(&stream, PATIENCE)?;
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
    limit(&stream, PATIENCE)?;
    let mut request = vec![0; MIB];
    stream.read_exact(&mut request)?;
    stream.write_all(&request)?;
    // The client's end: at EOF it has read the complete answer.
    stream.read_to_end(&mut Vec::new())?;
    path_mtu(&stream, from.is_ipv6())
}

/// Sends datagrams that may not be fragmented until each end's kernel refuses large ones.
pub(super) fn datagrams(world: &World) -> io::Result<u32> {
    let service = world.service;
    let v6 = service.is_ipv6();
    // The largest datagram that the interfaces of both ends take.
    let largest = vec![1; 1500 - if v6 { 48 } else { 28 }];
    converse(world, &largest, |server, client| {
        never_cut(server, v6)?;
        never_cut(client, v6)?;
        until("the client's kernel refuses no datagram", || {
            _ = client.recv(&mut [0; 2048]);
            is_too_large(&client.send_to(&largest, service))
        })?;
        until("the backend's kernel refuses no datagram", || {
            ask(client, service, b"?").is_ok_and(|answer| answer == REFUSED)
        })?;
        // Connects to where the single datagrams have gone, to read the MTU of that path. A pod's
        // connected socket is translated packet by packet, so that for `PodSocket` this is the
        // backend itself.
        let at_the_pods_socket = world.through == Through::PodSocket;
        client.connect(if at_the_pods_socket {
            world.backend
        } else {
            service
        })?;
        path_mtu(client, v6)
    })
}

/// Sends datagrams larger than any link until one of them gets an answer of the same size.
pub(super) fn fragments(world: &World) -> io::Result<()> {
    let large = vec![1; 4000];
    converse(world, &large, |_, client| {
        until("no large datagram is answered", || {
            ask(client, world.service, &large).is_ok_and(|answer| answer == large)
        })
    })
}

/// Runs `part` while the backend sends `answer` to each datagram, or `REFUSED` if `answer` is too
/// large.
fn converse<T>(
    world: &World,
    answer: &[u8],
    part: impl FnOnce(&UdpSocket, &UdpSocket) -> io::Result<T>,
) -> io::Result<T> {
    let any = SocketAddr::new(unspecified(world.service), 0);
    let server = world.at_the_backend(|| UdpSocket::bind(world.backend))?;
    let client = world.at_the_client(|| UdpSocket::bind(any))?;
    for socket in [&server, &client] {
        socket.set_read_timeout(Some(Duration::from_millis(50)))?;
    }
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let Ok((_, from)) = server.recv_from(&mut [0; 8192]) else {
                    continue;
                };
                if is_too_large(&server.send_to(answer, from)) {
                    _ = server.send_to(REFUSED, from);
                }
            }
        });
        let result = part(&server, &client);
        done.store(true, Ordering::Relaxed);
        result
    })
}

/// Sends one datagram; returns the next one that arrives.
fn ask(client: &UdpSocket, service: SocketAddr, request: &[u8]) -> io::Result<Vec<u8>> {
    client.send_to(request, service)?;
    let mut answer = vec![0; 8192];
    let length = client.recv(&mut answer)?;
    answer.truncate(length);
    Ok(answer)
}

const fn unspecified(service: SocketAddr) -> IpAddr {
    match service {
        SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        SocketAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
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

/// Sets the bit "don't fragment" in all packets of the socket, and lets it send nothing that is too
/// large for its path.
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

/// The path MTU of a connected socket as its kernel knows it, in bytes.
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
