// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Small clients. Each returns which server answered, the client's address that it saw, and the
//! source of the answer.

use std::{
    io::{self, BufRead, BufReader, Write},
    net::{SocketAddr, TcpStream, UdpSocket},
};

use crate::world::PATIENCE;

/// A server's answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Answer {
    /// The name of the pod that answered.
    pub(crate) by: String,
    /// The client's address as the pod sees it.
    pub(crate) seen: SocketAddr,
    /// The source of the answer, as the client sees it.
    pub(crate) from: SocketAddr,
}

/// Parses an answer: a name, an address, and perhaps the request's text.
pub(crate) fn parse(text: &str, from: SocketAddr) -> Answer {
    let mut words = text.split_whitespace();
    let (by, seen) = (words.next(), words.next());
    let (by, seen) = by.zip(seen).expect("a name and an address");
    Answer {
        by: by.to_owned(),
        seen: seen.parse().expect("an address"),
        from,
    }
}

/// An open connection and its server's first line.
pub(crate) struct Open {
    pub(crate) stream: TcpStream,
    pub(crate) answer: Answer,
}

impl Open {
    /// Connects, and reads which server answers.
    pub(crate) fn to(to: SocketAddr) -> io::Result<Self> {
        Self::over(TcpStream::connect_timeout(&to, PATIENCE)?)
    }
    /// Reads which server answers on a stream that is already connected.
    pub(crate) fn over(stream: TcpStream) -> io::Result<Self> {
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut line = String::new();
        BufReader::new(stream.try_clone()?).read_line(&mut line)?;
        let answer = parse(&line, stream.peer_addr()?);
        Ok(Self { stream, answer })
    }
    /// Returns whether the connection still carries bytes in both directions.
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

/// Returns an unconnected UDP socket of the address's family.
pub(crate) fn datagrams(any: &str) -> UdpSocket {
    let socket = UdpSocket::bind(any).expect("a socket");
    socket
        .set_read_timeout(Some(PATIENCE))
        .expect("a time limit");
    socket
}

/// Sends a datagram to an address and waits for the answer.
pub(crate) fn ask(socket: &UdpSocket, to: SocketAddr) -> io::Result<Answer> {
    socket.send_to(b"who?", to)?;
    hear(socket)
}

/// Waits for an answer, and returns it.
pub(crate) fn hear(socket: &UdpSocket) -> io::Result<Answer> {
    let mut buffer = [0; 2048];
    let (length, from) = socket.recv_from(&mut buffer)?;
    Ok(parse(&String::from_utf8_lossy(&buffer[..length]), from))
}

/// Sends a datagram on a connected socket, and waits for the answer.
pub(crate) fn ask_connected(socket: &UdpSocket) -> io::Result<Answer> {
    socket.send(b"who?")?;
    hear(socket)
}

/// Returns a connected UDP socket.
pub(crate) fn connected(any: &str, to: SocketAddr) -> UdpSocket {
    let socket = datagrams(any);
    socket.connect(to).expect("connect");
    socket
}
