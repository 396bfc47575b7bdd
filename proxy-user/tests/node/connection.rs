// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An open connection through a service, and the server at its other end.

use std::{
    io::{self, BufRead, BufReader, Write},
    net::{SocketAddr, TcpStream},
    thread,
    time::Duration,
};

use lab::node::netns::NetNs;

const ANSWER: Duration = Duration::from_secs(2);

/// Sends every line back.
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
    /// Connects from a pod; the server at the other end answers.
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

    /// Sends a line; returns the answer, or the error.
    pub(crate) fn echo(&mut self, line: &str) -> String {
        let mut answer = String::new();
        // In one segment.
        let sent = self.0.get_mut().write_all(format!("{line}\n").as_bytes());
        match sent.and_then(|()| self.0.read_line(&mut answer)) {
            Ok(_) => answer.trim_end().to_owned(),
            Err(error) => error.to_string(),
        }
    }
}
