// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The data that is sent through a service, in both directions.

use std::{
    io::{self, ErrorKind, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream, UdpSocket},
    thread,
    time::Duration,
};

use lab::node::netns::NetNs;
use socket2::SockRef;

use super::lane::Flow;
use crate::connection::{failed, limit};

const LENGTH: usize = 300_000;
/// How long to wait. If packets are lost, a transfer stalls; otherwise it takes milliseconds, or a
/// second in a virtual machine.
const PATIENCE: Duration = Duration::from_secs(60);
const ANSWER: Duration = Duration::from_secs(5);
/// How often to try: neighbour resolution and path MTU discovery may lose the first datagrams.
const ATTEMPTS: usize = 4;

/// Sends a request to the service and gets it back, over one connection.
pub(super) fn stream(flow: &Flow<'_>) -> io::Result<()> {
    let listener = inside(flow.backend, || TcpListener::bind(flow.served_at))?;
    // The timeout is for `accept`.
    SockRef::from(&listener).set_read_timeout(Some(PATIENCE))?;
    thread::scope(|scope| {
        let backend = scope.spawn(|| {
            let (mut stream, _) = listener.accept()?;
            limit(&stream, PATIENCE)?;
            let mut request = vec![0; LENGTH];
            stream.read_exact(&mut request)?;
            stream.write_all(&request)
        });
        let said = ask(flow);
        let heard = backend.join().expect("it does not panic");
        said.map_err(|error| failed("the client", &error))?;
        heard.map_err(|error| failed("the backend", &error))
    })
}

fn ask(flow: &Flow<'_>) -> io::Result<()> {
    let mut stream = inside(flow.client, || {
        TcpStream::connect_timeout(&flow.service, PATIENCE)
    })?;
    limit(&stream, PATIENCE)?;
    let request = pattern(LENGTH);
    stream.write_all(&request)?;
    let mut answer = vec![0; LENGTH];
    stream.read_exact(&mut answer)?;
    compare(&answer, &request)
}

/// Sends datagrams and gets them back.
pub(super) fn datagrams(flow: &Flow<'_>) -> io::Result<()> {
    let server = inside(flow.backend, || UdpSocket::bind(flow.served_at))?;
    let client = inside(flow.client, || {
        UdpSocket::bind(if flow.service.is_ipv6() {
            SocketAddr::from(([0; 16], 0))
        } else {
            SocketAddr::from(([0; 4], 0))
        })
    })?;
    client.connect(flow.service)?;
    // A datagram of the first length fits every interface, one of the second only those outside: an
    // ICMP error makes the sender fragment it.
    let largest = 1500 - if flow.service.is_ipv6() { 48 } else { 28 };
    [1200, largest].into_iter().try_for_each(|length| {
        let request = pattern(length);
        let answered = exchange(&client, &server, &request);
        answered.map_err(|error| failed(&format!("{length} bytes"), &error))
    })
}

fn exchange(client: &UdpSocket, server: &UdpSocket, request: &[u8]) -> io::Result<()> {
    client.set_read_timeout(Some(ANSWER))?;
    server.set_read_timeout(Some(ANSWER))?;
    let mut buffer = [0; 2048];
    let mut last = ErrorKind::TimedOut.into();
    for _ in 0..ATTEMPTS {
        let mut attempt = || {
            client.send(request)?;
            let (length, from) = server.recv_from(&mut buffer)?;
            server.send_to(&buffer[..length], from)?;
            let length = client.recv(&mut buffer)?;
            compare(&buffer[..length], request)
        };
        match attempt() {
            Ok(()) => return Ok(()),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn inside<T>(host: &NetNs, work: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    host.enter(work).expect("enter the namespace")
}

/// Bytes in which no two segments are alike.
fn pattern(length: usize) -> Vec<u8> {
    let bytes = (0_u32..).flat_map(u32::to_be_bytes);
    bytes.take(length).collect()
}

fn compare(answer: &[u8], request: &[u8]) -> io::Result<()> {
    if answer == request {
        Ok(())
    } else {
        Err(io::Error::other("the answer is not what was asked"))
    }
}
