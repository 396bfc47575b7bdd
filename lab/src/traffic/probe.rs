// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The requests and answers between the lab's clients and servers, and a client's result.
//!
//! A request is one line with a nonce and a length, then that many bytes of a pattern. The answer
//! is one line too, then the same pattern. The line holds the nonce, the length, the server's
//! address, the client's address as the server sees it, and whether the request's pattern was
//! undamaged.

use std::{
    io::{self, BufRead, Read},
    net::SocketAddr,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

/// One connection of a flow and its outcome.
#[derive(Debug, Clone)]
pub struct Attempt {
    /// The client's address and port according to its own socket.
    pub source: SocketAddr,
    /// The time from the client's first packet until the outcome was known.
    pub after: Duration,
    pub outcome: Outcome,
    /// The payload of the client's first packet.
    pub sent: Vec<u8>,
    /// Packets that left the node by its uplink during this connection; None if not watched.
    pub left: Option<Vec<Packet>>,
}

/// The outcome of a client's connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    Answered(Answer),
    /// ICMP port unreachable or a TCP reset arrived.
    Refused,
    /// Another error from the network, as text.
    Unreachable(String),
    /// The local kernel refused to send (EPERM).
    Denied,
    Silence,
    /// A connection without a valid answer; the text says what was wrong.
    Broken(String),
}

/// What a client learns from a server's answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// Address and port of the answering server, as it says itself.
    pub by: SocketAddr,
    /// Address and port of the client as the server sees them.
    pub seen: SocketAddr,
    /// Source address and port of the answer as the client sees them.
    pub from: SocketAddr,
    /// Whether the data arrived undamaged in both directions.
    pub intact: bool,
}

/// A captured packet: the parts that the checks need.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packet {
    pub protocol: u8,
    pub source: SocketAddr,
    pub destination: SocketAddr,
    /// For SCTP the bytes after the ports, for TCP and UDP those after the complete header.
    pub payload: Vec<u8>,
}

/// The longest pattern that is accepted, in bytes.
const LONGEST: usize = 1 << 20;

/// Returns a number that no other request of this process has.
pub(super) fn nonce() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed) << 16 | u64::from(std::process::id() & 0xffff)
}

fn pattern(nonce: u64, length: usize) -> impl Iterator<Item = u8> {
    (0..length).map(move |n| (n.wrapping_mul(31) ^ nonce as usize >> (n % 5)) as u8)
}

/// Returns a request's bytes.
pub(super) fn request(nonce: u64, length: usize) -> Vec<u8> {
    let mut bytes = format!("portolan? {nonce} {length}\n").into_bytes();
    bytes.extend(pattern(nonce, length));
    bytes
}

/// Reads a request from `input` and returns the answer's bytes; None if `input` is no request. `by`
/// is the server's address, `seen` the client's.
pub(super) fn answer(
    input: &mut impl BufRead,
    by: SocketAddr,
    seen: SocketAddr,
) -> io::Result<Option<Vec<u8>>> {
    let line = line(input)?;
    let fields: Vec<_> = line.split_whitespace().collect();
    let ["portolan?", nonce, length] = fields[..] else {
        return Ok(None);
    };
    let (Ok(nonce), Ok(length)) = (nonce.parse(), length.parse()) else {
        return Ok(None);
    };
    let intact = is_pattern(input, nonce, length)?;
    Ok(Some(write_answer(nonce, length, by, seen, intact)))
}

/// Returns an answer's bytes. `by` is the server's address, `seen` the client's.
pub(super) fn write_answer(
    nonce: u64,
    length: usize,
    by: SocketAddr,
    seen: SocketAddr,
    intact: bool,
) -> Vec<u8> {
    let mut bytes = format!("portolan! {nonce} {length} {by} {seen} {intact}\n").into_bytes();
    bytes.extend(pattern(nonce, length));
    bytes
}

/// Reads an answer that came from `from`; None if it is no answer to the request with this nonce.
pub(super) fn read_answer(
    input: &mut impl BufRead,
    nonce: u64,
    from: SocketAddr,
) -> io::Result<Option<Answer>> {
    let line = line(input)?;
    let fields: Vec<_> = line.split_whitespace().collect();
    let ["portolan!", number, length, by, seen, intact] = fields[..] else {
        return Ok(None);
    };
    let (Ok(length), Ok(by), Ok(seen), Ok(intact)) = (
        length.parse(),
        by.parse(),
        seen.parse(),
        intact.parse::<bool>(),
    ) else {
        return Ok(None);
    };
    if number != nonce.to_string() {
        return Ok(None);
    }
    let intact = is_pattern(input, nonce, length)? && intact;
    Ok(Some(Answer {
        by,
        seen,
        from,
        intact,
    }))
}

fn line(input: &mut impl BufRead) -> io::Result<String> {
    let mut line = Vec::new();
    input.take(200).read_until(b'\n', &mut line)?;
    Ok(String::from_utf8_lossy(&line).into_owned())
}

fn is_pattern(input: &mut impl Read, nonce: u64, length: usize) -> io::Result<bool> {
    let mut bytes = vec![0; length.min(LONGEST)];
    input.read_exact(&mut bytes)?;
    Ok(bytes.into_iter().eq(pattern(nonce, length)))
}
