// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What nf_conntrack translates on behalf of others, asked by ctnetlink.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use netlink_sys::protocols::NETLINK_NETFILTER;
use proxy_common::Protocol;

use super::{
    Plain,
    netlink::{ALL, DONE, ERROR, Header, attributes, error_in, messages, open, receive},
};

/// `NFNL_SUBSYS_CTNETLINK`, `IPCTNL_MSG_CT_GET`.
const GET: u16 = 1 << 8 | 1;

/// The request for all connections.
#[derive(Clone, Copy)]
#[repr(C)]
struct Request {
    header: Header,
    /// `struct nfgenmsg`: any family, version 0.
    generic: [u8; 4],
}
// SAFETY: repr(C), no padding, valid for every bit pattern.
unsafe impl Plain for Request {}

/// Length of `struct nfgenmsg`, which every answer begins with.
const GENERIC: usize = 4;

/// Whether this network namespace's nf_conntrack holds a TCP connection whose destination, one that `counts`, it
/// translates: another proxy's. A kernel without it holds none.
pub fn has_translated(counts: impl Fn(IpAddr) -> bool) -> io::Result<bool> {
    let socket = match open(NETLINK_NETFILTER) {
        Err(error) if error.raw_os_error() == Some(libc::EPROTONOSUPPORT) => return Ok(false),
        socket => socket?,
    };
    let request = Request {
        header: Header::of::<Request>(GET, ALL),
        generic: [0; GENERIC],
    };
    socket.send(request.bytes(), 0)?;
    loop {
        for (kind, payload) in messages(&receive(&socket)?) {
            match kind {
                DONE => return Ok(false),
                ERROR => {
                    return match -error_in(payload) {
                        // Nobody there who would know.
                        libc::EINVAL | libc::EOPNOTSUPP => Ok(false),
                        error => Err(io::Error::from_raw_os_error(error)),
                    };
                }
                _ => {
                    let translated = translated(payload.get(GENERIC..).unwrap_or_default());
                    if translated.is_some_and(&counts) {
                        return Ok(true);
                    }
                }
            }
        }
    }
}

/// The original destination of a TCP connection that is sent elsewhere.
fn translated(connection: &[u8]) -> Option<IpAddr> {
    const TUPLE_ORIGINAL: u16 = 1;
    const STATUS: u16 = 3;
    const TUPLE_IP: u16 = 1;
    const TUPLE_PROTOCOL: u16 = 2;
    const V4_DESTINATION: u16 = 2;
    const V6_DESTINATION: u16 = 4;
    const NUMBER: u16 = 1;
    const TRANSLATES_DESTINATION: u32 = 1 << 5;

    let find = |bytes, kind| {
        let mut all = attributes(bytes).into_iter();
        all.find_map(|(found, value)| (found == kind).then_some(value))
    };
    let status: [u8; 4] = find(connection, STATUS)?.try_into().ok()?;
    let original = find(connection, TUPLE_ORIGINAL)?;
    let protocol = find(find(original, TUPLE_PROTOCOL)?, NUMBER)?;
    if u32::from_be_bytes(status) & TRANSLATES_DESTINATION == 0 || protocol != [Protocol::TCP.0] {
        return None;
    }
    let addresses = find(original, TUPLE_IP)?;
    if let Some(v4) = find(addresses, V4_DESTINATION) {
        return Some(Ipv4Addr::from(<[u8; 4]>::try_from(v4).ok()?).into());
    }
    let v6 = find(addresses, V6_DESTINATION)?;
    Some(Ipv6Addr::from(<[u8; 16]>::try_from(v6).ok()?).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let length = u16::try_from(4 + value.len()).expect("short");
        let mut bytes = [length.to_ne_bytes(), kind.to_ne_bytes()].concat();
        bytes.extend(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn connection(status: u32, protocol: u8, destination: (u16, &[u8])) -> Vec<u8> {
        const NESTED: u16 = 0x8000;
        let addresses = [
            attribute(1, &[10, 0, 0, 1]),
            attribute(destination.0, destination.1),
        ];
        let tuple = [
            attribute(1 | NESTED, &addresses.concat()),
            attribute(2 | NESTED, &attribute(1, &[protocol])),
        ];
        [
            attribute(1 | NESTED, &tuple.concat()),
            attribute(3, &status.to_be_bytes()),
        ]
        .concat()
    }

    #[test]
    fn only_tcp_connections_that_are_sent_elsewhere_count() {
        let v4 = (2, &[172, 30, 0, 1][..]);
        let found = Some(IpAddr::from([172, 30, 0, 1]));
        assert_eq!(translated(&connection(0x1ae, 6, v4)), found);
        assert_eq!(
            translated(&connection(0x18e, 6, v4)),
            None,
            "not translated"
        );
        assert_eq!(translated(&connection(0x1ae, 17, v4)), None, "UDP");
        let address: Ipv6Addr = "fd00:30::1".parse().expect("an address");
        let v6 = (4, &address.octets()[..]);
        assert_eq!(translated(&connection(0x1ae, 6, v6)), Some(address.into()));
        let whole = connection(0x1ae, 6, v4);
        for length in 0..whole.len() {
            // Whatever is missing: no panic.
            _ = translated(&whole[..length]);
        }
    }

    #[test]
    fn a_namespace_without_connections_has_none() {
        assert!(!has_translated(|_| false).expect("the kernel answers"));
    }
}
