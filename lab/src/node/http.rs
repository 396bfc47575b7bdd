// SPDX-License-Identifier: Apache-2.0 OR MIT
//! HTTP GETs inside a network namespace, of health, metrics and health check node ports.

use std::{
    io::{self, Read, Write},
    net::{IpAddr, SocketAddr, TcpStream},
    time::Duration,
};

use anyhow::{Context, Result};
use socket2::{Domain, SockAddr, Socket, Type};

use super::netns::NetNs;

const TO_CONNECT: Duration = Duration::from_secs(1);
const TO_ANSWER: Duration = Duration::from_secs(3);

/// Sends a GET from the address `from` of the namespace. Returns HTTP status and body.
pub fn get(namespace: &NetNs, from: IpAddr, to: SocketAddr, path: &str) -> Result<(u16, String)> {
    let attempt = || format!("GET http://{to}{path} from {from}");
    let answer = namespace
        .enter(|| ask(from, to, path))?
        .with_context(attempt)?;
    let status = answer
        .split_whitespace()
        .nth(1)
        .and_then(|status| status.parse().ok());
    let status = status.with_context(|| format!("{}: no HTTP answer: {answer:?}", attempt()))?;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    let head = head.to_ascii_lowercase();
    let body = match head.contains("\r\ntransfer-encoding: chunked") {
        true => dechunked(body).with_context(attempt)?,
        false => body.to_owned(),
    };
    Ok((status, body))
}

/// Returns the body of an answer in HTTP's chunked coding: each chunk follows its length in
/// hexadecimal, and the last chunk is empty. None if the answer is incomplete.
fn dechunked(mut rest: &str) -> Option<String> {
    let mut body = String::new();
    loop {
        let (length, chunks) = rest.split_once("\r\n")?;
        let length = usize::from_str_radix(length.split(';').next()?.trim(), 16).ok()?;
        if length == 0 {
            return Some(body);
        }
        let (chunk, after) = chunks.split_at_checked(length)?;
        body += chunk;
        rest = after.strip_prefix("\r\n")?;
    }
}

fn ask(from: IpAddr, to: SocketAddr, path: &str) -> io::Result<String> {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)?;
    // A loopback client connects without binding (conformance/FORMAT.md).
    if !from.is_loopback() {
        socket.bind(&SockAddr::from(SocketAddr::new(from, 0)))?;
    }
    socket.connect_timeout(&SockAddr::from(to), TO_CONNECT)?;
    let mut stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(TO_ANSWER))?;
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: {to}\r\nConnection: close\r\n\r\n"
    )?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

#[cfg(test)]
mod tests {
    use super::dechunked;

    #[test]
    fn http_chunks_are_joined_and_a_truncated_answer_is_rejected() {
        assert_eq!(
            dechunked("4\r\nab\r\n\r\nA;x=y\r\n0123456789\r\n0\r\n\r\n").as_deref(),
            Some("ab\r\n0123456789")
        );
        for half in ["", "4\r\nab", "4\r\nabcd\r\n", "x\r\nab\r\n0\r\n\r\n"] {
            assert_eq!(dechunked(half), None, "{half:?}");
        }
    }
}
