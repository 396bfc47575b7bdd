// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Small clients: each returns which server answered, the source that it saw, and where the answer
//! came from.

use std::{
    io::{self, BufRead, BufReader, Write},
    net::{SocketAddr, TcpStream, UdpSocket},
};

use crate::world::PATIENCE;

/// An answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Answer {
    /// Which pod.
    pub(crate) by: String,
    /// Whom it sees.
    pub(crate) seen: SocketAddr,
    /// Its source address, as the client sees it.
    pub(crate) from: SocketAddr,
}

/// Reads an answer: a name, an address, and perhaps what was asked.
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
    /// Connects and reads which server answers.
    pub(crate) fn to(to: SocketAddr) -> io::Result<Self> {
        Self::over(TcpStream::connect_timeout(&to, PATIENCE)?)
    }
    /// The same over a stream that is connected already.
    pub(crate) fn over(stream: TcpStream) -> io::Result<Self> {
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut line = String::new();
        BufReader::new(stream.try_clone()?).read_line(&mut line)?;
        let answer = parse(&line, stream.peer_addr()?);
        Ok(Self { stream, answer })
    }
    /// Whether it still carries bytes both ways.
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

/// An unconnected UDP socket of a family.
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

/// Waits for an answer.
pub(crate) fn hear(socket: &UdpSocket) -> io::Result<Answer> {
    let mut buffer = [0; 2048];
    let (length, from) = socket.recv_from(&mut buffer)?;
    Ok(parse(&String::from_utf8_lossy(&buffer[..length]), from))
}

/// The same over a connected socket.
pub(crate) fn ask_connected(socket: &UdpSocket) -> io::Result<Answer> {
    socket.send(b"who?")?;
    hear(socket)
}

/// A connected UDP socket.
pub(crate) fn connected(any: &str, to: SocketAddr) -> UdpSocket {
    let socket = datagrams(any);
    socket.connect(to).expect("connect");
    socket
}
