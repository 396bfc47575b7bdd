// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An open connection through a service, and the server at its other end.

use std::{
    io::{self, BufRead, BufReader, ErrorKind, Write},
    net::{SocketAddr, TcpStream, UdpSocket},
    os::fd::AsRawFd,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use k8s_openapi::jiff::Timestamp;
use lab::node::netns::NetNs;

/// How long to wait for an answer, also on a busy machine.
const ANSWER: Duration = Duration::from_secs(5);

/// Sends every line of the connection back.
pub(crate) fn echo(stream: TcpStream) {
    thread::spawn(move || {
        let mut lines = BufReader::new(stream);
        let mut line = String::new();
        while lines.read_line(&mut line).is_ok_and(|read| read > 0) {
            if lines.get_mut().write_all(line.as_bytes()).is_err() {
                return;
            }
            line.clear();
        }
    });
}

/// An open connection through a service.
pub(crate) struct Open(BufReader<TcpStream>);

impl Open {
    /// Connects from a pod to a server that echoes.
    pub(crate) fn connect(pod: &NetNs, to: &str) -> io::Result<Self> {
        let to: SocketAddr = to.parse().expect("an address and port");
        let stream = pod
            .enter(|| TcpStream::connect_timeout(&to, ANSWER))
            .expect("enter the pod")?;
        stream.set_read_timeout(Some(ANSWER))?;
        let mut open = Self(BufReader::new(stream));
        let answer = open.echo("hello");
        (answer == "hello")
            .then_some(open)
            .ok_or_else(|| io::Error::other(answer))
    }

    /// Connects again and again until `done`; returns the number of connections. Panics if one
    /// fails, or if two lost their SYN: a busy machine is slow, but needs no retransmissions.
    pub(crate) fn keep_connecting(pod: &NetNs, to: &str, done: &AtomicBool) -> u32 {
        let (mut made, mut slow) = (0, 0);
        while !done.load(Ordering::Relaxed) {
            let (at, begun) = (Timestamp::now(), Instant::now());
            let open =
                Self::connect(pod, to).unwrap_or_else(|error| panic!("connection {made}: {error}"));
            let (took, repeated) = (begun.elapsed(), repeated(open.0.get_ref()));
            if repeated > 0 && took > Duration::from_millis(900) {
                slow += 1;
                println!(
                    "connection {made}, begun at {at}: {took:?}, {repeated} segments repeated"
                );
            }
            assert!(slow < 2, "two of {made} connections lost a segment");
            made += 1;
            // A closed connection keeps its source port for a minute.
            thread::sleep(Duration::from_millis(2));
        }
        made
    }

    /// Sets how long to wait for an answer.
    pub(crate) fn set_patience(&self, patience: Duration) {
        let socket = self.0.get_ref();
        socket.set_read_timeout(Some(patience)).expect("a timeout");
    }

    /// Sends a line; returns the answer or the error as text.
    pub(crate) fn echo(&mut self, line: &str) -> String {
        let mut answer = String::new();
        // The line goes out in one segment.
        let sent = self.0.get_mut().write_all(format!("{line}\n").as_bytes());
        match sent.and_then(|()| self.0.read_line(&mut answer)) {
            Ok(_) => answer.trim_end().to_owned(),
            Err(error) => error.to_string(),
        }
    }
}

/// The number of segments that this end of a connection has retransmitted.
fn repeated(stream: &TcpStream) -> u32 {
    const TOTAL_RETRANS: usize = 100;
    let mut info = [0_u8; TOTAL_RETRANS + 4];
    let mut length = info.len() as libc::socklen_t;
    #[expect(unsafe_code, reason = "std does not read TCP_INFO")]
    // SAFETY: the kernel writes at most `length` bytes.
    let result = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    assert_eq!(result, 0, "TCP_INFO");
    let field = info[TOTAL_RETRANS..].try_into().expect("four bytes");
    u32::from_ne_bytes(field)
}

/// Sends every datagram to [`crate::objects::questions`] back, from this pod.
pub(crate) fn answer_questions(pod: &NetNs) {
    let answering = pod.enter(|| UdpSocket::bind("10.40.1.20:8080"));
    let answering = answering.expect("the pod").expect("a socket");
    thread::spawn(move || {
        let mut buffer = [0; 65_536];
        while let Ok((length, from)) = answering.recv_from(&mut buffer) {
            _ = answering.send_to(&buffer[..length], from);
        }
    });
}

/// A UDP socket in a pod, connected to [`crate::objects::questions`].
pub(crate) fn asking(pod: &NetNs) -> UdpSocket {
    asking_at(pod, "172.30.1.9:53")
}

/// A UDP socket in a pod, connected to this address and port.
pub(crate) fn asking_at(pod: &NetNs, to: &str) -> UdpSocket {
    let asking = pod.enter(|| {
        let asking = UdpSocket::bind("0.0.0.0:0")?;
        asking.connect(to)?;
        asking.set_read_timeout(Some(Duration::from_secs(5)))?;
        io::Result::Ok(asking)
    });
    asking.expect("the pod").expect("a socket")
}

/// Sends a datagram and expects it back.
#[track_caller]
pub(crate) fn ask(socket: &UdpSocket, text: &str) {
    socket.send(text.as_bytes()).expect("sent");
    let mut answer = [0; 64];
    let length = receive(socket, &mut answer);
    assert_eq!(&answer[..length], text.as_bytes());
}

/// Receives a datagram; returns its length. With a time limit, a signal to the test's process ends
/// the call early, and the kernel does not repeat it.
#[track_caller]
pub(crate) fn receive(socket: &UdpSocket, buffer: &mut [u8]) -> usize {
    loop {
        match socket.recv(buffer) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            received => return received.expect("an answer"),
        }
    }
}

/// Limits the time of each read and write on a stream.
pub(crate) fn limit(stream: &TcpStream, patience: Duration) -> io::Result<()> {
    stream.set_read_timeout(Some(patience))?;
    stream.set_write_timeout(Some(patience))
}

/// The error of one end of a connection, with its name.
pub(crate) fn failed(who: &str, error: &io::Error) -> io::Error {
    let why = match error.kind() {
        ErrorKind::WouldBlock => "it stands still".to_owned(),
        _ => error.to_string(),
    };
    io::Error::new(error.kind(), format!("{who}: {why}"))
}
