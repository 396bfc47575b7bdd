// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A large transfer in both directions, and the path MTU that each end has learned from it.

use std::{
    io::{self, Read, Write},
    net::{TcpListener, TcpStream},
    os::fd::AsRawFd,
    thread,
    time::Duration,
};

use socket2::SockRef;

use super::world::World;
use crate::connection::{failed, limit};

const MIB: usize = 1 << 20;
/// How long to wait. A transfer stalls if its ICMP error is lost; otherwise it takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(4);

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
