// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Requests to the kernel by netlink(7), for subsystems whose messages no crate defines. Used by
//! most other files of this crate.

use std::{io, ops::ControlFlow};

use netlink_packet_core::{
    Emitable, ErrorBuffer, NLA_HEADER_SIZE, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NLMSG_DONE,
    NLMSG_ERROR, NetlinkBuffer, NetlinkHeader, NlasIterator,
};
use netlink_sys::{Socket, SocketAddr};

/// A netlink socket for requests to one of the kernel's subsystems.
pub(super) struct Connection(Socket);

impl Connection {
    pub(super) fn open(protocol: isize) -> io::Result<Self> {
        let mut socket = Socket::new(protocol)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        Ok(Self(socket))
    }

    /// Sends a request and visits the payloads of the answers. Stops at the end of the answers, at
    /// an acknowledgement, or when `visit` breaks. Fails if an answer is an error.
    pub(super) fn ask(
        &self,
        kind: u16,
        flags: u16,
        payload: &[u8],
        visit: impl FnMut(&[u8]) -> ControlFlow<()>,
    ) -> io::Result<()> {
        self.answers(kind, flags, payload, visit).map(drop)
    }
    /// Requests a list and visits its elements. The kernel makes a list in several steps; if
    /// something changes in between, elements may be missing, and the list is requested again.
    pub(super) fn list(
        &self,
        kind: u16,
        payload: &[u8],
        mut visit: impl FnMut(&[u8]),
    ) -> io::Result<()> {
        const LISTS: usize = 8;
        for _ in 0..LISTS {
            let mut elements = Vec::new();
            let is_whole = self.answers(kind, NLM_F_DUMP, payload, |element| {
                elements.push(element.to_vec());
                ControlFlow::Continue(())
            })?;
            if is_whole {
                elements.iter().for_each(|element| visit(element));
                return Ok(());
            }
        }
        let changing = "it changes faster than the kernel lists it";
        Err(io::Error::new(io::ErrorKind::Interrupted, changing))
    }
    /// Does the same as [`Self::ask`]; returns true if nothing changed while the kernel made the
    /// answers.
    fn answers(
        &self,
        kind: u16,
        flags: u16,
        payload: &[u8],
        mut visit: impl FnMut(&[u8]) -> ControlFlow<()>,
    ) -> io::Result<bool> {
        self.0.send(&request(kind, flags, payload), 0)?;
        let mut is_whole = true;
        loop {
            let (datagram, _) = self.0.recv_from_full()?;
            let mut rest = datagram.as_slice();
            while let Ok(message) = NetlinkBuffer::new_checked(rest) {
                is_whole &= message.flags() & NLM_F_DUMP_INTR == 0;
                match message.message_type() {
                    NLMSG_DONE => return result_of_dump(message.payload()).map(|()| is_whole),
                    NLMSG_ERROR => return error_in(message.payload()).map(|()| is_whole),
                    _ => {
                        if visit(message.payload()).is_break() {
                            return Ok(is_whole);
                        }
                    }
                }
                let next = (message.length() as usize).next_multiple_of(4);
                rest = rest.get(next..).unwrap_or_default();
            }
        }
    }
    /// Sends several requests (kind, flags, payload) at once, and waits until `acknowledged` of
    /// them are acknowledged, or for the first error.
    pub(super) fn send_all(
        &self,
        requests: &[(u16, u16, Vec<u8>)],
        acknowledged: usize,
    ) -> io::Result<()> {
        let requests = requests.iter();
        let requests = requests.flat_map(|(kind, flags, payload)| request(*kind, *flags, payload));
        self.0.send(&requests.collect::<Vec<_>>(), 0)?;
        let mut left = acknowledged;
        while left > 0 {
            let (datagram, _) = self.0.recv_from_full()?;
            let mut rest = datagram.as_slice();
            while let Ok(message) = NetlinkBuffer::new_checked(rest) {
                if message.message_type() == NLMSG_ERROR {
                    error_in(message.payload())?;
                    left = left.saturating_sub(1);
                }
                let next = (message.length() as usize).next_multiple_of(4);
                rest = rest.get(next..).unwrap_or_default();
            }
        }
        Ok(())
    }
}

impl Connection {
    /// Sends requests (kind, flags with `NLM_F_ACK`, payload), all in one message, and returns the
    /// result of each. The kernel handles them in this order, with almost no time between them.
    pub(super) fn tell<const N: usize>(
        &self,
        requests: [(u16, u16, &[u8]); N],
    ) -> io::Result<[io::Result<()>; N]> {
        let all = requests.map(|(kind, flags, payload)| {
            let mut bytes = request(kind, flags, payload);
            bytes.resize(bytes.len().next_multiple_of(4), 0);
            bytes
        });
        self.0.send(&all.concat(), 0)?;
        let mut results = [(); N].map(|()| Ok(()));
        let mut answered = 0;
        while answered < N {
            let (datagram, _) = self.0.recv_from_full()?;
            let mut rest = datagram.as_slice();
            while let Ok(message) = NetlinkBuffer::new_checked(rest) {
                if message.message_type() == NLMSG_ERROR
                    && let Some(result) = results.get_mut(answered)
                {
                    *result = error_in(message.payload());
                    answered += 1;
                }
                let next = (message.length() as usize).next_multiple_of(4);
                rest = rest.get(next..).unwrap_or_default();
            }
        }
        Ok(results)
    }
}

fn request(kind: u16, flags: u16, payload: &[u8]) -> Vec<u8> {
    let mut header = NetlinkHeader::default();
    let length = header.buffer_len();
    header.length = (length + payload.len()) as u32;
    header.message_type = kind;
    header.flags = NLM_F_REQUEST | flags;
    let mut bytes = vec![0; length];
    header.emit(&mut bytes);
    bytes.extend_from_slice(payload);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// Returns the error in a list's last message (`NLMSG_DONE`) if the kernel could not complete the
/// list.
fn result_of_dump(payload: &[u8]) -> io::Result<()> {
    match payload.first_chunk().map(|code| i32::from_ne_bytes(*code)) {
        Some(code) if code < 0 => Err(io::Error::from_raw_os_error(-code)),
        _ => Ok(()),
    }
}

/// Returns the error in a message of the kind [`NLMSG_ERROR`]; an acknowledgement is such a message
/// without one.
fn error_in(payload: &[u8]) -> io::Result<()> {
    let error = ErrorBuffer::new_checked(payload).map_err(io::Error::other)?;
    match error.code() {
        Some(code) => Err(io::Error::from_raw_os_error(-code.get())),
        None => Ok(()),
    }
}

/// Encodes a netlink attribute, padded to a multiple of four bytes.
pub(super) fn encode(kind: u16, value: &[u8]) -> Vec<u8> {
    let length = (NLA_HEADER_SIZE + value.len()) as u16;
    let mut bytes = [length.to_ne_bytes(), kind.to_ne_bytes()].concat();
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// Returns the value of the first attribute of this kind; None if there is none.
pub(super) fn attribute(attributes: &[u8], kind: u16) -> Option<&[u8]> {
    let found = NlasIterator::new(attributes)
        .flatten()
        .find(|attribute| attribute.kind() == kind)?;
    let length = usize::from(found.length());
    found.into_inner().get(NLA_HEADER_SIZE..length)
}
