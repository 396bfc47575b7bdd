// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Requests to the kernel by netlink(7), for subsystems whose messages no crate defines. Used by
//! most other files of this crate.

use std::{
    io, iter,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    ops::ControlFlow,
};

use netlink_packet_core::{
    Emitable, ErrorBuffer, NLA_HEADER_SIZE, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NLMSG_DONE,
    NLMSG_ERROR, NetlinkBuffer, NetlinkHeader, NlasIterator,
};
use netlink_sys::{Socket, SocketAddr};

use super::answers::none_if;

/// A netlink socket for requests to one of the kernel's subsystems.
pub(super) struct Connection(Socket);

impl Connection {
    pub(super) fn open(protocol: isize) -> io::Result<Self> {
        let mut socket = Socket::new(protocol)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        Ok(Self(socket))
    }
    /// Does the same as [`Self::open`]; None if the kernel lacks the subsystem.
    pub(super) fn open_if_known(protocol: isize) -> io::Result<Option<Self>> {
        none_if(&[libc::EPROTONOSUPPORT], Self::open(protocol))
    }

    /// Sends a request and visits the payloads of the answers, up to the last one or to an
    /// acknowledgement. Fails if an answer is an error.
    pub(super) fn ask(
        &self,
        kind: u16,
        flags: u16,
        payload: &[u8],
        mut visit: impl FnMut(&[u8]),
    ) -> io::Result<()> {
        self.answers(kind, flags, payload, |answer| {
            visit(answer);
            ControlFlow::Continue(())
        })
        .map(drop)
    }
    /// Requests one object, and returns what `read` finds in the answer.
    pub(super) fn ask_one<T>(
        &self,
        kind: u16,
        payload: &[u8],
        read: impl Fn(&[u8]) -> Option<T>,
    ) -> io::Result<Option<T>> {
        let mut found = None;
        self.answers(kind, 0, payload, |answer| {
            found = read(answer);
            ControlFlow::Break(())
        })?;
        Ok(found)
    }
    /// Requests a list and visits its elements. The kernel makes a list in several steps; if
    /// something changes in between, elements may be missing, and the list is requested again.
    pub(super) fn list(
        &self,
        kind: u16,
        payload: &[u8],
        mut visit: impl FnMut(&[u8]),
    ) -> io::Result<()> {
        const LISTS: usize = 10;
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
    /// Does the same as [`Self::ask`], or stops when `visit` breaks; returns true if nothing
    /// changed while the kernel made the answers.
    fn answers(
        &self,
        kind: u16,
        flags: u16,
        payload: &[u8],
        mut visit: impl FnMut(&[u8]) -> ControlFlow<()>,
    ) -> io::Result<bool> {
        self.0.send(&request(kind, flags, payload), 0)?;
        let mut is_whole = true;
        self.receive(|message| take(&message, &mut is_whole, &mut visit))??;
        Ok(is_whole)
    }
    /// Visits the messages that the kernel sends, until `visit` breaks; returns the value that
    /// `visit` breaks with.
    fn receive<T>(
        &self,
        mut visit: impl FnMut(NetlinkBuffer<&[u8]>) -> ControlFlow<T>,
    ) -> io::Result<T> {
        loop {
            let (datagram, _) = self.0.recv_from_full()?;
            if let ControlFlow::Break(result) = messages(&datagram).try_for_each(&mut visit) {
                return Ok(result);
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
        if left == 0 {
            return Ok(());
        }
        self.receive(|message| {
            if message.message_type() != NLMSG_ERROR {
                return ControlFlow::Continue(());
            }
            left -= 1;
            match error_in(message.payload()) {
                Ok(()) if left > 0 => ControlFlow::Continue(()),
                result => ControlFlow::Break(result),
            }
        })?
    }
}

/// Takes an answer: breaks after the last one, and with the error of one that is an error. Makes
/// `is_whole` false if something has changed while the kernel made the answers.
fn take(
    message: &NetlinkBuffer<&[u8]>,
    is_whole: &mut bool,
    visit: &mut impl FnMut(&[u8]) -> ControlFlow<()>,
) -> ControlFlow<io::Result<()>> {
    *is_whole &= message.flags() & NLM_F_DUMP_INTR == 0;
    match message.message_type() {
        NLMSG_DONE => ControlFlow::Break(result_of_dump(message.payload())),
        NLMSG_ERROR => ControlFlow::Break(error_in(message.payload())),
        _ => visit(message.payload()).map_break(Ok),
    }
}

pub(super) fn messages(datagram: &[u8]) -> impl Iterator<Item = NetlinkBuffer<&[u8]>> {
    let mut rest = datagram;
    iter::from_fn(move || {
        let message = NetlinkBuffer::new_checked(rest).ok()?;
        let next = (message.length() as usize).next_multiple_of(4);
        rest = rest.get(next..).unwrap_or_default();
        Some(message)
    })
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
/// without an error.
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

/// Encodes a netlink attribute that has attributes itself.
pub(super) fn nested(kind: u16, attributes: &[u8]) -> Vec<u8> {
    const NESTED: u16 = 1 << 15;
    encode(kind | NESTED, attributes)
}

/// Returns the value of the first attribute of this kind; None if there is none.
pub(super) fn attribute(attributes: &[u8], kind: u16) -> Option<&[u8]> {
    let found = NlasIterator::new(attributes)
        .flatten()
        .find(|attribute| attribute.kind() == kind)?;
    let length = usize::from(found.length());
    found.into_inner().get(NLA_HEADER_SIZE..length)
}

/// Returns the value of the first attribute of this kind; None if there is none, or if the value
/// has another length.
pub(super) fn array<const N: usize>(attributes: &[u8], kind: u16) -> Option<[u8; N]> {
    attribute(attributes, kind)?.try_into().ok()
}

/// Returns the number that is the value of the first attribute of this kind.
pub(super) fn number(attributes: &[u8], kind: u16) -> Option<u32> {
    array(attributes, kind).map(u32::from_ne_bytes)
}

/// Decodes an IP address; None unless there are 4 or 16 bytes.
pub(super) fn address(octets: &[u8]) -> Option<IpAddr> {
    if let Ok(v4) = <[u8; 4]>::try_from(octets) {
        return Some(Ipv4Addr::from(v4).into());
    }
    Some(Ipv6Addr::from(<[u8; 16]>::try_from(octets).ok()?).into())
}

/// Returns the number of an address's family, and the address in bytes.
pub(super) fn family_and_octets(address: IpAddr) -> (u8, Vec<u8>) {
    match address {
        IpAddr::V4(v4) => (libc::AF_INET as u8, v4.octets().to_vec()),
        IpAddr::V6(v6) => (libc::AF_INET6 as u8, v6.octets().to_vec()),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Calls `read` with the bytes truncated to every shorter length; `read` must not panic.
    pub(crate) fn cut_off_anywhere(bytes: &[u8], mut read: impl FnMut(&[u8])) {
        (0..bytes.len()).for_each(|length| read(&bytes[..length]));
    }

    #[test]
    fn an_interrupted_or_failed_netlink_list_is_not_whole() {
        let taken = |interrupted: Option<usize>, code: i32| {
            let flags = |at| u16::from(interrupted == Some(at)) * NLM_F_DUMP_INTR;
            let elements = (0..2).map(|at| request(16, flags(at), &[0; 16]));
            let done = request(NLMSG_DONE, flags(2), &code.to_ne_bytes());
            let list: Vec<_> = elements.chain([done]).flatten().collect();
            let (mut count, mut is_whole) = (0, true);
            let mut visit = |_: &[u8]| {
                count += 1;
                ControlFlow::Continue(())
            };
            let ended =
                messages(&list).try_for_each(|message| take(&message, &mut is_whole, &mut visit));
            let is_done = matches!(ended, ControlFlow::Break(Ok(())));
            (count, is_whole, is_done)
        };
        assert_eq!(taken(None, 0), (2, true, true));
        for interrupted in 0..3 {
            assert_eq!(taken(Some(interrupted), 0), (2, false, true));
        }
        assert_eq!(taken(None, -12), (2, true, false));
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(bytes: Vec<u8>, kind: u16) {
            _ = (attribute(&bytes, kind), messages(&bytes).count());
        }
    }
}
