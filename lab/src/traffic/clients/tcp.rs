// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A client that opens one TCP connection: a request, its answer, a clean end.

use std::{
    io::{self, BufReader, Read, Write},
    net::{Shutdown, SocketAddr, TcpStream},
    time::Instant,
};

use anyhow::Result;
use socket2::{SockAddr, SockAddrStorage, SockRef, Type};

use super::{Client, LONG_PATIENCE, failure};
use crate::traffic::probe::{self, Attempt, Outcome};

impl Client<'_> {
    pub(super) fn tcp(&self, to: SocketAddr, length: usize) -> Result<Attempt> {
        let socket = self.socket(Type::STREAM, None)?;
        let began = Instant::now();
        let connected = socket.connect_timeout(&SockAddr::from(to), self.patience);
        let after = began.elapsed();
        let source = self.local_address(&socket)?;
        let stream = TcpStream::from(socket);
        let outcome = match connected {
            Err(error) => failure(&error),
            Ok(()) => match self.converse(&stream, to, length) {
                Ok(outcome) => outcome,
                Err(error) => Outcome::Broken(format!("connected, then {error}")),
            },
        };
        if self.port != 0 {
            disconnect(&stream)?;
        }
        Ok(Attempt {
            source,
            after,
            outcome,
            sent: Vec::new(),
            left: None,
        })
    }

    fn converse(&self, stream: &TcpStream, to: SocketAddr, length: usize) -> io::Result<Outcome> {
        stream.set_read_timeout(Some(LONG_PATIENCE))?;
        stream.set_write_timeout(Some(LONG_PATIENCE))?;
        stream.set_nodelay(true)?;
        let nonce = probe::nonce();
        let mut output = stream;
        output.write_all(&probe::request(nonce, length))?;
        let mut input = BufReader::new(stream);
        let answer = probe::read_answer(&mut input, nonce, to)?;
        if self.port == 0 {
            stream.shutdown(Shutdown::Write)?;
            input.read_to_end(&mut Vec::new())?;
        }
        Ok(answer.map_or_else(
            || Outcome::Broken("connected, then an answer to another request".to_owned()),
            Outcome::Answered,
        ))
    }
}

/// Ends a connection by a reset, which leaves no TIME_WAIT, so that the port can be reused at once.
/// Closing the socket is not enough: a process that another thread is starting may still have it
/// open.
fn disconnect(stream: &TcpStream) -> io::Result<()> {
    let length = size_of::<libc::sockaddr>() as u32;
    // SAFETY: zeros are an address of the family AF_UNSPEC, and the length is that of an address.
    let nobody = unsafe { SockAddr::new(SockAddrStorage::zeroed(), length) };
    SockRef::from(stream).connect(&nobody)
}
