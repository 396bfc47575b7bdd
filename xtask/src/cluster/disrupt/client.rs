// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A client of `cluster disrupt`: opens connections, uses open ones and sends datagrams all the
//! time, and prints as JSON how many failed. `disrupt` starts it as a process on a node, in a pod
//! or outside; the client ends when its stdin is closed.

use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream, UdpSocket},
    sync::atomic::{AtomicBool, Ordering},
    thread::{self, sleep},
    time::Duration,
};

use anyhow::{Context, Result};
use serde_json::{Value, json};

/// A connection attempt or an answer that takes longer counts as failed.
const PATIENCE: Duration = Duration::from_secs(3);
const OPEN_CONNECTIONS: usize = 20;
const OPEN_SOCKETS: usize = 4;

static STOP: AtomicBool = AtomicBool::new(false);

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// agnhost's HTTP service
    #[arg(long)]
    tcp: SocketAddr,
    /// agnhost's UDP service
    #[arg(long)]
    udp: SocketAddr,
}

/// The results of one kind of requests, e.g. of those on open connections.
#[derive(Default)]
struct Tally {
    done: u64,
    failed: u64,
    first_error: Option<String>,
}

impl Tally {
    fn count(&mut self, result: io::Result<()>) -> bool {
        self.done += 1;
        if let Err(error) = &result {
            self.failed += 1;
            self.first_error.get_or_insert_with(|| error.to_string());
        }
        result.is_ok()
    }
    fn json(self) -> Value {
        json!({"done": self.done, "failed": self.failed, "error": self.first_error})
    }
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let (tcp, udp) = (arguments.tcp, arguments.udp);
    let clients = [
        (
            "new connections",
            thread::spawn(move || new_connections(tcp)),
        ),
        (
            "open connections",
            thread::spawn(move || open_connections(tcp)),
        ),
        ("new sockets", thread::spawn(move || new_sockets(udp))),
        ("open sockets", thread::spawn(move || open_sockets(udp))),
    ];
    io::stdin()
        .read_to_end(&mut Vec::new())
        .context("wait for the end of the input")?;
    STOP.store(true, Ordering::Relaxed);
    let mut results = serde_json::Map::new();
    for (name, client) in clients {
        if let Ok(tally) = client.join() {
            results.insert(name.to_owned(), tally.json());
        }
    }
    println!("{}", Value::Object(results));
    Ok(())
}

fn goes_on() -> bool {
    !STOP.load(Ordering::Relaxed)
}

fn new_connections(to: SocketAddr) -> Tally {
    let mut tally = Tally::default();
    while goes_on() {
        tally.count(connect(to).and_then(|mut stream| ask(&mut stream)));
        sleep(Duration::from_millis(10));
    }
    tally
}

/// Sends requests on open connections. Each connection counts once: as failed if it breaks.
fn open_connections(to: SocketAddr) -> Tally {
    let mut tally = Tally::default();
    let mut open = Vec::new();
    for _ in 0..OPEN_CONNECTIONS {
        match connect(to) {
            Ok(stream) => open.push(stream),
            Err(error) => _ = tally.count(Err(error)),
        }
    }
    while goes_on() {
        open.retain_mut(|stream| match ask(stream) {
            Ok(()) => true,
            Err(error) => tally.count(Err(error)),
        });
        sleep(Duration::from_millis(100));
    }
    for _ in open {
        tally.count(Ok(()));
    }
    tally
}

fn new_sockets(to: SocketAddr) -> Tally {
    let mut tally = Tally::default();
    while goes_on() {
        tally.count(socket().and_then(|socket| {
            socket.send_to(b"echo hello", to)?;
            let mut answer = [0; 64];
            let (_, from) = socket.recv_from(&mut answer)?;
            let reason = || io::Error::other(format!("answered by {from}"));
            if from == to { Ok(()) } else { Err(reason()) }
        }));
        sleep(Duration::from_millis(20));
    }
    tally
}

/// Sends datagrams from the same sockets all the time, as some DNS resolvers do.
fn open_sockets(to: SocketAddr) -> Tally {
    let mut tally = Tally::default();
    let connected = || {
        let socket = socket()?;
        socket.connect(to)?;
        io::Result::Ok(socket)
    };
    let mut open: Vec<Option<UdpSocket>> = (0..OPEN_SOCKETS).map(|_| None).collect();
    while goes_on() {
        for place in &mut open {
            let asked = match place.take().map_or_else(connected, Ok) {
                Err(error) => Err(error),
                Ok(socket) => socket
                    .send(b"echo hello")
                    .and_then(|_| socket.recv(&mut [0; 64]))
                    .map(|_| *place = Some(socket)),
            };
            tally.count(asked);
        }
        sleep(Duration::from_millis(50));
    }
    tally
}

fn socket() -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    socket.set_read_timeout(Some(PATIENCE))?;
    Ok(socket)
}

fn connect(to: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&to, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Sends one HTTP request on an open connection and reads the answer.
fn ask(stream: &mut TcpStream) -> io::Result<()> {
    stream.write_all(b"GET /hostname HTTP/1.1\r\nHost: load\r\n\r\n")?;
    let mut answer = Vec::new();
    let mut part = [0; 1024];
    while !is_whole(&answer) {
        match stream.read(&mut part)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            read => answer.extend_from_slice(&part[..read]),
        }
    }
    Ok(())
}

fn is_whole(answer: &[u8]) -> bool {
    let text = String::from_utf8_lossy(answer);
    let Some((head, body)) = text.split_once("\r\n\r\n") else {
        return false;
    };
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("Content-Length: "))
        .and_then(|length| length.trim().parse::<usize>().ok());
    body.len() >= length.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_http_answer_is_complete_only_with_its_last_byte() {
        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nname";
        assert!(is_whole(answer));
        assert!((0..answer.len()).all(|length| !is_whole(&answer[..length])));
    }
}
