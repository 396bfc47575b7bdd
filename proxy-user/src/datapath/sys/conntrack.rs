// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Foreign connections: those that another proxy translates by nf_conntrack, listed by ctnetlink. Called by `agent`.

use std::{
    collections::HashSet,
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    ops::ControlFlow,
};

use netlink_packet_core::NLM_F_DUMP;
use netlink_sys::protocols::NETLINK_NETFILTER;
use proxy_common::Protocol;

use super::netlink::{Connection, attribute};

/// `NFNL_SUBSYS_CTNETLINK`, `IPCTNL_MSG_CT_GET`.
const GET: u16 = 1 << 8 | 1;

/// Length of `struct nfgenmsg`, with which every message begins. All zero: any family, version 0.
const GENERIC: usize = 4;

/// The original destinations of the TCP connections of this network namespace whose destination nf_conntrack translates: another
/// proxy's connections. A kernel without nf_conntrack has none. Reads the whole table, which takes the longer the larger it is.
pub fn translated_destinations() -> io::Result<HashSet<SocketAddr>> {
    let connection = match Connection::open(NETLINK_NETFILTER) {
        Err(error) if error.raw_os_error() == Some(libc::EPROTONOSUPPORT) => {
            return Ok(HashSet::new());
        }
        connection => connection?,
    };
    let mut found = HashSet::new();
    let asked = connection.ask(GET, NLM_F_DUMP, &[0; GENERIC], |answer| {
        found.extend(translated(answer.get(GENERIC..).unwrap_or_default()));
        ControlFlow::Continue(())
    });
    match asked {
        // The kernel has no ctnetlink.
        Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP)) => {
            Ok(HashSet::new())
        }
        asked => asked.map(|()| found),
    }
}

/// The original destination of a TCP connection whose destination is translated.
fn translated(connection: &[u8]) -> Option<SocketAddr> {
    const TUPLE_ORIGINAL: u16 = 1;
    const STATUS: u16 = 3;
    const TUPLE_IP: u16 = 1;
    const TUPLE_PROTOCOL: u16 = 2;
    const V4_DESTINATION: u16 = 2;
    const V6_DESTINATION: u16 = 4;
    const NUMBER: u16 = 1;
    const DESTINATION_PORT: u16 = 3;
    const TRANSLATES_DESTINATION: u32 = 1 << 5;

    let status: [u8; 4] = attribute(connection, STATUS)?.try_into().ok()?;
    let original = attribute(connection, TUPLE_ORIGINAL)?;
    let transport = attribute(original, TUPLE_PROTOCOL)?;
    let protocol = attribute(transport, NUMBER)?;
    if u32::from_be_bytes(status) & TRANSLATES_DESTINATION == 0 || protocol != [Protocol::TCP.0] {
        return None;
    }
    let port = attribute(transport, DESTINATION_PORT)?.try_into().ok()?;
    let port = u16::from_be_bytes(port);
    let addresses = attribute(original, TUPLE_IP)?;
    if let Some(v4) = attribute(addresses, V4_DESTINATION) {
        return Some((Ipv4Addr::from(<[u8; 4]>::try_from(v4).ok()?), port).into());
    }
    let v6 = attribute(addresses, V6_DESTINATION)?;
    Some((Ipv6Addr::from(<[u8; 16]>::try_from(v6).ok()?), port).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(kind: u16, value: &[u8]) -> Vec<u8> {
        let length = u16::try_from(4 + value.len()).expect("short");
        let mut bytes = [length.to_ne_bytes(), kind.to_ne_bytes()].concat();
        bytes.extend(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn connection(status: u32, protocol: u8, destination: (u16, &[u8])) -> Vec<u8> {
        const NESTED: u16 = 0x8000;
        let addresses = [
            encoded(1, &[10, 0, 0, 1]),
            encoded(destination.0, destination.1),
        ];
        let transport = [
            encoded(1, &[protocol]),
            encoded(2, &40_000_u16.to_be_bytes()),
            encoded(3, &443_u16.to_be_bytes()),
        ];
        let tuple = [
            encoded(1 | NESTED, &addresses.concat()),
            encoded(2 | NESTED, &transport.concat()),
        ];
        [
            encoded(1 | NESTED, &tuple.concat()),
            encoded(3, &status.to_be_bytes()),
        ]
        .concat()
    }

    #[test]
    fn only_tcp_connections_that_are_sent_elsewhere_count() {
        let v4 = (2, &[172, 30, 0, 1][..]);
        let found = Some(SocketAddr::from(([172, 30, 0, 1], 443)));
        assert_eq!(translated(&connection(0x1ae, 6, v4)), found);
        assert_eq!(
            translated(&connection(0x18e, 6, v4)),
            None,
            "not translated"
        );
        assert_eq!(translated(&connection(0x1ae, 17, v4)), None, "UDP");
        let address: Ipv6Addr = "fd00:30::1".parse().expect("an address");
        let v6 = (4, &address.octets()[..]);
        assert_eq!(
            translated(&connection(0x1ae, 6, v6)),
            Some((address, 443).into())
        );
        let whole = connection(0x1ae, 6, v4);
        for length in 0..whole.len() {
            // Cut off anywhere, it does not panic.
            _ = translated(&whole[..length]);
        }
    }

    #[test]
    fn the_kernel_answers() {
        _ = translated_destinations().expect("the kernel answers");
    }

    proptest::proptest! {
        #[test]
        fn whatever_comes_is_survived(
            bytes: Vec<u8>, edits: Vec<(u16, u8)>, length in 0_usize..200,
        ) {
            _ = translated(&bytes);
            let mut damaged = connection(0x1ae, 6, (2, &[172, 30, 0, 1]));
            for (place, byte) in edits {
                let place = usize::from(place) % damaged.len();
                damaged[place] = byte;
            }
            damaged.truncate(length);
            _ = translated(&damaged);
        }
    }
}
