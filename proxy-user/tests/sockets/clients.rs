// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Small TCP and UDP clients. Each returns which pod answered, the client's address that the pod
//! saw, and the source of the answer.

use std::{
    io::{self, BufRead, BufReader, Write},
    net::{SocketAddr, TcpStream, UdpSocket},
};

use crate::world::PATIENCE;

/// A pod's answer to a request, as the client has received it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Answer {
    /// The pod that answered, by the last number of its addresses.
    pub(crate) by: u8,
    /// The client's address and port as the pod sees them.
    pub(crate) seen: SocketAddr,
    /// The source of the answer as the client sees it; for TCP the connection's peer.
    pub(crate) from: SocketAddr,
}

/// Parses an answer: a pod's number, the client's address, and perhaps the request's text.
pub(crate) fn parse(text: &str, from: SocketAddr) -> Answer {
    let mut words = text.split_whitespace();
    let (by, seen) = (words.next(), words.next());
    let (by, seen) = by.zip(seen).expect("a number and an address");
    Answer {
        by: by.parse().expect("a number"),
        seen: seen.parse().expect("an address"),
        from,
    }
}

/// An open TCP connection, with the first line that the pod has sent.
pub(crate) struct Open {
    pub(crate) stream: TcpStream,
    pub(crate) answer: Answer,
}

impl Open {
    /// Connects, and reads the first line, in which the pod says who it is.
    pub(crate) fn to(to: SocketAddr) -> io::Result<Self> {
        Self::over(TcpStream::connect_timeout(&to, PATIENCE)?)
    }
    /// Reads the first line on a stream that is already connected.
    pub(crate) fn over(stream: TcpStream) -> io::Result<Self> {
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut line = String::new();
        BufReader::new(stream.try_clone()?).read_line(&mut line)?;
        let answer = parse(&line, stream.peer_addr()?);
        Ok(Self { stream, answer })
    }
    /// Returns true if the connection still transmits bytes in both directions.
    pub(crate) fn is_alive(&mut self) -> bool {
        let mut line = String::new();
        let sent = self.stream.write_all(b"still there?\n");
        sent.and_then(|()| {
            BufReader::new(self.stream.try_clone()?).read_line(&mut line)?;
            Ok(line == "still there?\n")
        })
        .unwrap_or(false)
    }
}

/// An address for `bind` that allows any address and port.
pub(crate) const V4: &str = "0.0.0.0:0";
pub(crate) const V6: &str = "[::]:0";

/// Returns a new UDP socket bound to `any`, an unspecified address such as "0.0.0.0:0".
pub(crate) fn datagrams(any: &str) -> UdpSocket {
    let socket = UdpSocket::bind(any).expect("a socket");
    let limited = socket.set_read_timeout(Some(PATIENCE));
    limited.expect("a time limit");
    socket
}

/// Sends a datagram to an address, or with None to the socket's peer, and returns the answer.
#[track_caller]
pub(crate) fn ask(socket: &UdpSocket, to: impl Into<Option<SocketAddr>>) -> Answer {
    try_ask(socket, to).expect("an answer")
}

pub(crate) fn try_ask(socket: &UdpSocket, to: impl Into<Option<SocketAddr>>) -> io::Result<Answer> {
    match to.into() {
        Some(to) => socket.send_to(b"who?", to)?,
        None => socket.send(b"who?")?,
    };
    let mut buffer = [0; 2048];
    let (length, from) = socket.recv_from(&mut buffer)?;
    Ok(parse(&String::from_utf8_lossy(&buffer[..length]), from))
}

/// Returns a new UDP socket that is bound to `any` and connected to `to`.
pub(crate) fn connected(any: &str, to: SocketAddr) -> UdpSocket {
    let socket = datagrams(any);
    socket.connect(to).expect("connect");
    socket
}
