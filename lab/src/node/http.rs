// SPDX-License-Identifier: Apache-2.0 OR MIT
//! HTTP GETs inside a network namespace: health, metrics, health check node ports.

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

/// GETs a path as a client with an address of the namespace; status and body.
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
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    Ok((status, body.to_owned()))
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
