// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Clients that send one packet and wait for its answer: a datagram, or over a raw socket the first
//! packet of an SCTP handshake.

use std::{
    io::{self, ErrorKind},
    net::{SocketAddr, UdpSocket},
    time::{Duration, Instant},
};

use anyhow::Result;
use socket2::{Socket, Type};

use super::{Client, failure, fresh_port, report_errors};
use crate::traffic::{
    probe::{self, Attempt, Outcome},
    sctp::{self, Chunk},
};

/// Time to wait for our server's answer after an ABORT, which a kernel with SCTP sends, too.
const ABORT_GRACE: Duration = Duration::from_millis(50);

impl Client<'_> {
    pub(super) fn udp(&self, to: SocketAddr, length: usize) -> Result<Attempt> {
        let socket = self.datagram_socket()?;
        let source = self.local_address(&socket)?;
        let nonce = probe::nonce();
        let sent = probe::request(nonce, length);
        // Ignores short datagrams and answers to earlier requests.
        let read = |mut received: &[u8], from: SocketAddr| {
            let answer = probe::read_answer(&mut received, nonce, from);
            answer.ok().flatten().map(Outcome::Answered)
        };
        let (outcome, after) = self.exchange(socket, &sent, to, read)?;
        Ok(Attempt {
            source,
            after,
            outcome,
            sent,
            left: None,
        })
    }

    pub(super) fn sctp(&self, to: SocketAddr) -> Result<Attempt> {
        let socket = self.socket(Type::RAW, Some(sctp::PROTOCOL))?;
        let nonce = probe::nonce();
        let tag = (nonce ^ nonce >> 16) as u32 | 1;
        let port = match self.port {
            0 => fresh_port(),
            port => port,
        };
        let packet = sctp::init(port, to.port(), tag);
        let read = |received: &[u8], from: SocketAddr| {
            let bytes = sctp::payload(received, to)?;
            let Some(packet) = sctp::parse(bytes) else {
                return Some(Outcome::Broken("a damaged SCTP answer".to_owned()));
            };
            if packet.destination_port != port {
                return None;
            }
            match packet.chunk {
                Chunk::InitAck { cookie } if packet.verification_tag == tag => {
                    let from = SocketAddr::new(from.ip(), packet.source_port);
                    let answer = probe::read_answer(&mut &cookie[..], u64::from(tag), from);
                    Some(answer.ok().flatten().map_or_else(
                        || Outcome::Broken("an INIT ACK that is not our server's".to_owned()),
                        Outcome::Answered,
                    ))
                }
                Chunk::Abort => Some(Outcome::Refused),
                _ => None,
            }
        };
        let destination = SocketAddr::new(to.ip(), 0);
        let (outcome, after) = self.exchange(socket, &packet, destination, read)?;
        Ok(Attempt {
            source: SocketAddr::new(self.address, port),
            after,
            outcome,
            sent: packet[4..].to_vec(),
            left: None,
        })
    }

    /// Sends a packet and waits for one of which `read` makes an outcome; returns it and the time
    /// until then. The socket is not connected, so that it also receives an answer from a wrong
    /// address. After a packet that refuses, an answer may still come.
    fn exchange(
        &self,
        socket: Socket,
        packet: &[u8],
        to: SocketAddr,
        read: impl Fn(&[u8], SocketAddr) -> Option<Outcome>,
    ) -> io::Result<(Outcome, Duration)> {
        report_errors(&socket, to)?;
        // This type sends and receives over a raw socket as well.
        let socket = UdpSocket::from(socket);
        let began = Instant::now();
        if let Err(error) = socket.send_to(packet, to) {
            return Ok((failure(&error), began.elapsed()));
        }
        let (mut outcome, mut deadline) = (Outcome::Silence, began + self.patience);
        let mut buffer = vec![0; 65_536];
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            socket.set_read_timeout(Some(left))?;
            let found = match socket.recv_from(&mut buffer) {
                Ok((length, from)) => read(&buffer[..length], from),
                Err(error) if error.kind() == ErrorKind::Interrupted => None,
                Err(error) => match failure(&error) {
                    Outcome::Silence => break,
                    failed => return Ok((failed, began.elapsed())),
                },
            };
            match found {
                Some(Outcome::Refused) => {
                    outcome = Outcome::Refused;
                    deadline = deadline.min(Instant::now() + ABORT_GRACE);
                }
                Some(found) => {
                    outcome = found;
                    break;
                }
                None => {}
            }
        }
        Ok((outcome, began.elapsed()))
    }

    fn datagram_socket(&self) -> io::Result<Socket> {
        loop {
            let port = match self.port {
                0 => fresh_port(),
                port => port,
            };
            let client = Self { port, ..*self };
            match client.socket(Type::DGRAM, None) {
                Err(error) if error.kind() == ErrorKind::AddrInUse && self.port == 0 => {}
                other => return other,
            }
        }
    }
}
