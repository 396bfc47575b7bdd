// SPDX-License-Identifier: Apache-2.0 OR MIT
//! HTTP requests inside a network namespace, of health, metrics, health check node ports and etcd.
//! By HTTP 1.0, in which an answer is not cut into chunks.

use std::{
    io::{self, Read, Write},
    net::{IpAddr, SocketAddr, TcpStream},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use socket2::{Domain, SockAddr, Socket, Type};

use super::netns::NetNs;

const TO_CONNECT: Duration = Duration::from_secs(1);
const TO_ANSWER: Duration = Duration::from_secs(3);

/// Sends a GET from the address `from` of the namespace. Returns HTTP status and body.
pub fn get(namespace: &NetNs, from: IpAddr, to: SocketAddr, path: &str) -> Result<(u16, String)> {
    let head = format!("GET {path} HTTP/1.0\r\nHost: {to}\r\n\r\n");
    ask(namespace, from, to, &head, Some(TO_ANSWER))
        .with_context(|| format!("GET http://{to}{path} from {from}"))
}

/// Sends a request and waits for the answer, no longer than `patience`.
pub(super) fn ask(
    namespace: &NetNs,
    from: IpAddr,
    to: SocketAddr,
    request: &str,
    patience: Option<Duration>,
) -> Result<(u16, String)> {
    let ask = || -> io::Result<Vec<u8>> {
        let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)?;
        // A loopback client connects without binding (conformance/FORMAT.md).
        if !from.is_loopback() {
            socket.bind(&SockAddr::from(SocketAddr::new(from, 0)))?;
        }
        socket.connect_timeout(&SockAddr::from(to), TO_CONNECT)?;
        let mut stream = TcpStream::from(socket);
        stream.set_read_timeout(patience)?;
        stream.write_all(request.as_bytes())?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)?;
        Ok(answer)
    };
    let answer = namespace.enter(ask)??;
    let is_cut = is_cut(&answer);
    let answer = String::from_utf8_lossy(&answer);
    ensure!(!is_cut, "a truncated answer: {answer:?}");
    let status = answer.split_whitespace().nth(1);
    let status = status.and_then(|word| word.parse().ok());
    let status = status.with_context(|| format!("no HTTP answer: {answer:?}"))?;
    let body = answer.split_once("\r\n\r\n");
    let body = body.map(|(_, body)| body.to_owned());
    Ok((status, body.unwrap_or_default()))
}

/// Returns whether an answer's body is shorter than its head says; false if the head says nothing.
fn is_cut(answer: &[u8]) -> bool {
    const END: &[u8] = b"\r\n\r\n";
    let end = answer.windows(END.len()).position(|bytes| bytes == END);
    let (head, body) = answer.split_at(end.map_or(answer.len(), |end| end + END.len()));
    let head = String::from_utf8_lossy(head).to_ascii_lowercase();
    let mut lines = head.lines();
    let length = lines.find_map(|line| line.strip_prefix("content-length:")?.trim().parse().ok());
    length.is_some_and(|length: usize| body.len() < length)
}
