// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The connections that nf_conntrack knows in this network namespace, listed by ctnetlink. Called by `portolan shadow report`.

use std::{
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

/// The packets of one direction: source and destination.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Tuple {
    pub src: SocketAddr,
    pub dst: SocketAddr,
}

/// A connection of nf_conntrack, or an exchange of datagrams.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tracked {
    pub protocol: Protocol,
    /// As the client sends them.
    pub original: Tuple,
    /// As the server sends them.
    pub reply: Tuple,
}

/// Visits every connection. A kernel without nf_conntrack has none. Reads the whole table, which takes the longer the larger it is.
pub fn tracked(mut visit: impl FnMut(Tracked)) -> io::Result<()> {
    let connection = match Connection::open(NETLINK_NETFILTER) {
        Err(error) if error.raw_os_error() == Some(libc::EPROTONOSUPPORT) => return Ok(()),
        connection => connection?,
    };
    let asked = connection.ask(GET, NLM_F_DUMP, &[0; GENERIC], |answer| {
        if let Some(found) = read(answer.get(GENERIC..).unwrap_or_default()) {
            visit(found);
        }
        ControlFlow::Continue(())
    });
    match asked {
        // The kernel has no ctnetlink.
        Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP)) => {
            Ok(())
        }
        asked => asked,
    }
}

/// Reads a connection's attributes; `None` of a protocol without ports.
fn read(attributes: &[u8]) -> Option<Tracked> {
    const TUPLE_ORIGINAL: u16 = 1;
    const TUPLE_REPLY: u16 = 2;
    let (protocol, original) = tuple(attribute(attributes, TUPLE_ORIGINAL)?)?;
    let (_, reply) = tuple(attribute(attributes, TUPLE_REPLY)?)?;
    Some(Tracked {
        protocol,
        original,
        reply,
    })
}

fn tuple(tuple: &[u8]) -> Option<(Protocol, Tuple)> {
    const TUPLE_IP: u16 = 1;
    const TUPLE_PROTOCOL: u16 = 2;
    const V4: [u16; 2] = [1, 2];
    const V6: [u16; 2] = [3, 4];
    const NUMBER: u16 = 1;
    const PORTS: [u16; 2] = [2, 3];

    let transport = attribute(tuple, TUPLE_PROTOCOL)?;
    let addresses = attribute(tuple, TUPLE_IP)?;
    let end = |at: usize| {
        let v4 = array(addresses, V4[at]).map(|octets: [u8; 4]| Ipv4Addr::from(octets).into());
        let v6 = || array(addresses, V6[at]).map(|octets: [u8; 16]| Ipv6Addr::from(octets).into());
        let port = u16::from_be_bytes(array(transport, PORTS[at])?);
        Some(SocketAddr::new(v4.or_else(v6)?, port))
    };
    let [number] = array(transport, NUMBER)?;
    let tuple = Tuple {
        src: end(0)?,
        dst: end(1)?,
    };
    Some((Protocol(number), tuple))
}

/// The value of the first attribute of a kind, if it has this length.
fn array<const N: usize>(attributes: &[u8], kind: u16) -> Option<[u8; N]> {
    attribute(attributes, kind)?.try_into().ok()
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

    fn tuple(kind: u16, protocol: u8, from: ([u8; 4], u16), to: ([u8; 4], u16)) -> Vec<u8> {
        const NESTED: u16 = 0x8000;
        let addresses = [encoded(1, &from.0), encoded(2, &to.0)];
        let transport = [
            encoded(1, &[protocol]),
            encoded(2, &from.1.to_be_bytes()),
            encoded(3, &to.1.to_be_bytes()),
        ];
        let parts = [
            encoded(1 | NESTED, &addresses.concat()),
            encoded(2 | NESTED, &transport.concat()),
        ];
        encoded(kind | NESTED, &parts.concat())
    }

    fn connection() -> Vec<u8> {
        let (client, service, backend) = ([10, 0, 0, 1], [172, 30, 0, 1], [10, 0, 0, 9]);
        [
            tuple(1, 17, (client, 40_000), (service, 53)),
            tuple(2, 17, (backend, 5353), (client, 40_000)),
        ]
        .concat()
    }

    #[test]
    fn both_directions_of_a_connection_are_read() {
        let found = read(&connection()).expect("a connection");
        assert_eq!(found.protocol, Protocol::UDP);
        let at = |text: &str| text.parse().expect("an address");
        assert_eq!(found.original.src, at("10.0.0.1:40000"));
        assert_eq!(found.original.dst, at("172.30.0.1:53"));
        assert_eq!(found.reply.src, at("10.0.0.9:5353"));
        assert_eq!(found.reply.dst, at("10.0.0.1:40000"));
    }

    #[test]
    fn the_kernel_answers() {
        tracked(|_| {}).expect("the kernel answers");
    }

    proptest::proptest! {
        #[test]
        fn whatever_comes_is_survived(
            bytes: Vec<u8>, edits: Vec<(u16, u8)>, length in 0_usize..200,
        ) {
            _ = read(&bytes);
            let mut damaged = connection();
            for (place, byte) in edits {
                let place = usize::from(place) % damaged.len();
                damaged[place] = byte;
            }
            damaged.truncate(length);
            _ = read(&damaged);
        }
    }
}
