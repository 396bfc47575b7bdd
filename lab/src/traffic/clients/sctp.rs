// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A client that sends the first packet of an SCTP handshake over a raw socket and reads the
//! second.

use std::{
    io::{self, ErrorKind},
    mem::MaybeUninit,
    net::SocketAddr,
    time::{Duration, Instant},
};

use anyhow::Result;
use socket2::{SockAddr, Socket, Type};

use super::{Client, failure, fresh_port, report_errors};
use crate::traffic::{
    probe::{self, Attempt, Outcome},
    sctp::{self, Chunk},
};

/// Time to wait for our server's answer after an ABORT: a kernel with its own SCTP sends an ABORT
/// in addition.
const ABORT_GRACE: Duration = Duration::from_millis(50);

impl Client<'_> {
    pub(super) fn sctp(&self, to: SocketAddr) -> Result<Attempt> {
        let socket = self.socket(Type::RAW, Some(sctp::PROTOCOL))?;
        report_errors(&socket, to)?;
        let nonce = probe::nonce();
        let tag = (nonce ^ nonce >> 16) as u32 | 1;
        let port = if self.port == 0 {
            fresh_port()
        } else {
            self.port
        };
        let packet = sctp::init(port, to.port(), tag);
        let began = Instant::now();
        let destination = SockAddr::from(SocketAddr::new(to.ip(), 0));
        let outcome = match socket.send_to(&packet, &destination) {
            Ok(_) => self.await_init_ack(&socket, to, port, tag, began)?,
            Err(error) => failure(&error),
        };
        Ok(Attempt {
            source: SocketAddr::new(self.address, port),
            after: began.elapsed(),
            outcome,
            sent: packet[4..].to_vec(),
            left: None,
        })
    }

    fn await_init_ack(
        &self,
        socket: &Socket,
        to: SocketAddr,
        port: u16,
        tag: u32,
        began: Instant,
    ) -> io::Result<Outcome> {
        let mut deadline = began + self.patience;
        let mut ending = Outcome::Silence;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(ending);
            }
            socket.set_read_timeout(Some(left))?;
            let mut buffer = [MaybeUninit::new(0); 2048];
            let (length, from) = match socket.recv_from(&mut buffer) {
                Ok(received) => received,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => match failure(&error) {
                    Outcome::Silence => return Ok(ending),
                    other => return Ok(other),
                },
            };
            // SAFETY: the whole buffer was initialised above.
            let received = unsafe { buffer[..length].assume_init_ref() };
            let (Some(bytes), Some(from)) = (sctp::payload(received, to), from.as_socket()) else {
                continue;
            };
            let packet = match sctp::parse(bytes) {
                Some(packet) if packet.destination_port == port => packet,
                Some(_) => continue,
                None => return Ok(Outcome::Broken("a damaged SCTP answer".to_owned())),
            };
            match packet.chunk {
                Chunk::InitAck { cookie } if packet.verification_tag == tag => {
                    let from = SocketAddr::new(from.ip(), packet.source_port);
                    let answer = probe::read_answer(&mut &cookie[..], u64::from(tag), from)?;
                    return Ok(answer.map_or_else(
                        || Outcome::Broken("an INIT ACK that is not our server's".to_owned()),
                        Outcome::Answered,
                    ));
                }
                Chunk::Abort => {
                    ending = Outcome::Refused;
                    deadline = deadline.min(Instant::now() + ABORT_GRACE);
                }
                _ => {}
            }
        }
    }
}
