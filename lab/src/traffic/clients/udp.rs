// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A client that sends one datagram and reads its answer.

use std::{
    io::{self, ErrorKind},
    net::{SocketAddr, UdpSocket},
    time::Instant,
};

use anyhow::Result;
use socket2::{Socket, Type};

use super::{Client, failure, fresh_port, report_errors};
use crate::traffic::probe::{self, Attempt, Outcome};

impl Client<'_> {
    pub(super) fn udp(&self, to: SocketAddr, length: usize) -> Result<Attempt> {
        let socket = self.datagram_socket()?;
        report_errors(&socket, to)?;
        let source = self.local_address(&socket)?;
        let nonce = probe::nonce();
        let sent = probe::request(nonce, length);
        let socket = UdpSocket::from(socket);
        let began = Instant::now();
        let outcome = match socket.send_to(&sent, to) {
            Ok(_) => self.await_datagram(&socket, nonce, began)?,
            Err(error) => failure(&error),
        };
        Ok(Attempt {
            source,
            after: began.elapsed(),
            outcome,
            sent,
            left: None,
        })
    }

    /// Waits for the answer to the request with this nonce. The socket is not connected, so that it
    /// also receives an answer from a wrong address.
    fn await_datagram(
        &self,
        socket: &UdpSocket,
        nonce: u64,
        began: Instant,
    ) -> io::Result<Outcome> {
        let mut buffer = vec![0; 65_536];
        while let Some(left) = self
            .patience
            .checked_sub(began.elapsed())
            .filter(|left| !left.is_zero())
        {
            socket.set_read_timeout(Some(left))?;
            match socket.recv_from(&mut buffer) {
                Ok((length, from)) => {
                    // Ignores short datagrams and answers to earlier requests.
                    if let Ok(Some(answer)) =
                        probe::read_answer(&mut &buffer[..length], nonce, from)
                    {
                        return Ok(Outcome::Answered(answer));
                    }
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Ok(failure(&error)),
            }
        }
        Ok(Outcome::Silence)
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
