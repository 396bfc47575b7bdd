// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sends a datagram and waits for its answer.

use std::{
    io,
    net::{SocketAddr, UdpSocket},
    time::{Duration, Instant},
};

use super::model::Seen;
use crate::clients::parse;

/// Returns the errno of an error.
pub(crate) fn number(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(match error.kind() {
        io::ErrorKind::TimedOut => libc::ETIMEDOUT,
        _ => libc::EIO,
    })
}

/// Sends a text and waits for the answer that contains it.
pub(crate) fn converse(
    socket: &UdpSocket,
    text: &str,
    to: Option<SocketAddr>,
    patience: Duration,
) -> io::Result<Seen> {
    match to {
        Some(to) => socket.send_to(text.as_bytes(), to)?,
        None => socket.send(text.as_bytes())?,
    };
    let deadline = Instant::now() + patience;
    let mut buffer = [0; 256];
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(Seen::Silence);
        }
        socket.set_read_timeout(Some(left))?;
        match socket.recv_from(&mut buffer) {
            Ok((length, from)) => {
                let said = String::from_utf8_lossy(&buffer[..length]);
                // An answer with another text is a late answer to an earlier one.
                if said.ends_with(&format!(" {text}")) {
                    let port = socket.local_addr()?.port();
                    return Ok(Seen::Answer(parse(&said, from), port));
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}
