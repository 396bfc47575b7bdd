// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Messages of netlink(7) as they lie in datagrams: for the few requests that no crate makes.

use std::io;

use netlink_sys::{Socket, SocketAddr};

use super::Plain;

pub(super) const ERROR: u16 = 2;
pub(super) const DONE: u16 = 3;
const REQUEST: u16 = 1;
pub(super) const ACKNOWLEDGE: u16 = 4;
/// Asks for everything there is.
pub(super) const ALL: u16 = 0x300;

/// `struct nlmsghdr`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Header {
    pub(super) length: u32,
    pub(super) kind: u16,
    pub(super) flags: u16,
    pub(super) sequence: u32,
    pub(super) port: u32,
}
// SAFETY: repr(C), no padding (all fields lie at multiples of their size), valid for every bit pattern.
unsafe impl Plain for Header {}

impl Header {
    /// The header of a request that is a `T`, which begins with it.
    pub(super) const fn of<T>(kind: u16, flags: u16) -> Self {
        Self {
            length: size_of::<T>() as u32,
            kind,
            flags: REQUEST | flags,
            sequence: 1,
            port: 0,
        }
    }
}

/// A socket to the kernel.
pub(super) fn open(protocol: isize) -> io::Result<Socket> {
    let mut socket = Socket::new(protocol)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    Ok(socket)
}

pub(super) fn receive(socket: &Socket) -> io::Result<Vec<u8>> {
    let (bytes, _) = socket.recv_from_full()?;
    Ok(bytes)
}

/// The messages in a datagram: kind and payload.
pub(super) fn messages(mut bytes: &[u8]) -> Vec<(u16, &[u8])> {
    const LENGTH: usize = size_of::<Header>();
    let mut messages = Vec::new();
    while let Some(header) = Header::from_bytes(bytes) {
        let length = header.length as usize;
        if length < LENGTH || length > bytes.len() {
            break;
        }
        messages.push((header.kind, &bytes[LENGTH..length]));
        bytes = &bytes[length.next_multiple_of(4).min(bytes.len())..];
    }
    messages
}

/// The error (negative) or acknowledgement (0) in the payload of a message of kind [`ERROR`].
pub(super) fn error_in(payload: &[u8]) -> i32 {
    u32::from_bytes(payload).map_or(-libc::EPROTO, |error| error as i32)
}

/// The attributes in a payload: kind and value.
pub(super) fn attributes(mut bytes: &[u8]) -> Vec<(u16, &[u8])> {
    const LENGTH: usize = 4;
    const FLAGS: u16 = 0xc000;
    let mut attributes = Vec::new();
    while let [a, b, c, d, ..] = *bytes {
        let length = usize::from(u16::from_ne_bytes([a, b]));
        if length < LENGTH || length > bytes.len() {
            break;
        }
        let kind = u16::from_ne_bytes([c, d]) & !FLAGS;
        attributes.push((kind, &bytes[LENGTH..length]));
        bytes = &bytes[length.next_multiple_of(4).min(bytes.len())..];
    }
    attributes
}
