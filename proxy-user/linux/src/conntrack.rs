// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Lists the connections of nf_conntrack in this network namespace, by ctnetlink. Called by
//! `datapath` and `cli`.

use std::{io, net::SocketAddr};

use netlink_packet_core::NLM_F_DUMP;
use netlink_sys::protocols::NETLINK_NETFILTER;
use proxy_common::Protocol;

use super::{
    answers::none_if,
    netlink::{Connection, address, array, attribute},
    nftables::GENERIC,
};

/// `NFNL_SUBSYS_CTNETLINK`, `IPCTNL_MSG_CT_GET`.
const GET: u16 = 1 << 8 | 1;

/// Source and destination of a connection's packets in one direction.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Tuple {
    pub src: SocketAddr,
    pub dst: SocketAddr,
}

/// An entry of nf_conntrack: a connection, or an exchange of datagrams.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tracked {
    pub protocol: Protocol,
    /// Source and destination of the client's packets, as the client sends them.
    pub original: Tuple,
    /// Source and destination of the server's packets, as the server sends them.
    pub reply: Tuple,
    /// Bits of the kernel's `enum ip_conntrack_status`.
    pub status: u32,
    /// The entry's conntrack zone. Each zone has its own entries; the stack uses zone 0.
    pub zone: u16,
}

impl Tracked {
    /// Status bit: `IPS_DST_NAT`.
    const DNAT: u32 = 1 << 5;

    /// True if the client keeps its address and has another port. So it is without any rule, if the
    /// connection would have the tuple of another one.
    pub fn has_another_port(&self) -> bool {
        let (given, own) = (self.reply.dst, self.original.src);
        given.ip() == own.ip() && given.port() != own.port()
    }
    /// True if the client's packets are sent on to another address or port (DNAT). This is seen
    /// from the tuples: NAT also sets status bits, but IPVS changes only the tuple.
    pub fn is_sent_elsewhere(&self) -> bool {
        self.reply.src != self.original.dst
    }
    /// True if the kernel's NAT sends the client's packets elsewhere, and not IPVS.
    pub fn is_by_nat(&self) -> bool {
        self.status & Self::DNAT != 0
    }
}

/// Visits every entry of nf_conntrack; none on a kernel without nf_conntrack. Reads the complete
/// table, so it takes longer with a large one.
pub fn tracked(mut visit: impl FnMut(Tracked)) -> io::Result<()> {
    let Some(connection) = Connection::open_if_known(NETLINK_NETFILTER)? else {
        return Ok(());
    };
    let asked = connection.ask(GET, NLM_F_DUMP, &[0; GENERIC], |answer| {
        if let Some(found) = read(answer.get(GENERIC..).unwrap_or_default()) {
            visit(found);
        }
    });
    // A kernel without ctnetlink has these errors.
    none_if(&[libc::EINVAL, libc::EOPNOTSUPP], asked).map(drop)
}

/// Reads an entry from its netlink attributes; None for a protocol without ports.
fn read(attributes: &[u8]) -> Option<Tracked> {
    // CTA_TUPLE_ORIG, CTA_TUPLE_REPLY, CTA_STATUS, CTA_ZONE.
    let (protocol, original) = tuple(attribute(attributes, 1)?)?;
    let (_, reply) = tuple(attribute(attributes, 2)?)?;
    Some(Tracked {
        protocol,
        original,
        reply,
        status: u32::from_be_bytes(array(attributes, 3)?),
        zone: array(attributes, 18).map_or(0, u16::from_be_bytes),
    })
}

fn tuple(tuple: &[u8]) -> Option<(Protocol, Tuple)> {
    // CTA_TUPLE_IP with both addresses of IPv4 or of IPv6, CTA_TUPLE_PROTO with number and ports.
    let (addresses, transport) = (attribute(tuple, 1)?, attribute(tuple, 2)?);
    let end = |v4, v6, port| {
        let ip = attribute(addresses, v4).or_else(|| attribute(addresses, v6));
        let port = u16::from_be_bytes(array(transport, port)?);
        Some(SocketAddr::new(address(ip?)?, port))
    };
    let (src, dst) = (end(1, 3, 2)?, end(2, 4, 3)?);
    let [number] = array(transport, 1)?;
    Some((Protocol(number), Tuple { src, dst }))
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use super::*;
    use crate::netlink::{encode, family_and_octets, tests::cut_off_anywhere};

    /// Returns a connection from 10.0.0.1:40000 to a service at port 443, served by 10.0.0.2:8443.
    fn connection(status: u32, protocol: u8, v4: bool) -> Vec<u8> {
        let [client, service, server] = if v4 {
            ["10.0.0.1:40000", "172.30.0.1:443", "10.0.0.2:8443"]
        } else {
            ["[fd00::1]:40000", "[fd00:30::1]:443", "[fd00::2]:8443"]
        };
        let tuple = |kind, src: &str, dst: &str| {
            let [src, dst] = [src, dst].map(|end| end.parse::<SocketAddr>().expect("an address"));
            let octets = |end: SocketAddr| family_and_octets(end.ip()).1;
            let (from, to) = if v4 { (1, 2) } else { (3, 4) };
            let addresses = [encode(from, &octets(src)), encode(to, &octets(dst))];
            let [from, to] = [src, dst].map(|end| end.port().to_be_bytes());
            let transport = [encode(1, &[protocol]), encode(2, &from), encode(3, &to)];
            let addresses = encode(1, &addresses.concat());
            let transport = encode(2, &transport.concat());
            encode(kind, &[addresses, transport].concat())
        };
        let tuples = [tuple(1, client, service), tuple(2, server, client)];
        [tuples.concat(), encode(3, &status.to_be_bytes())].concat()
    }

    #[test]
    fn a_conntrack_entry_is_parsed_with_all_its_fields() {
        let found = read(&connection(0x1ae, 6, true)).expect("a connection");
        assert_eq!(found.protocol, Protocol::TCP);
        assert_eq!(found.original.src, ([10, 0, 0, 1], 40_000).into());
        assert_eq!(found.original.dst, ([172, 30, 0, 1], 443).into());
        assert_eq!(found.reply.src, ([10, 0, 0, 2], 8443).into());
        assert_eq!(found.reply.dst, found.original.src);
        assert_eq!((found.status, found.zone), (0x1ae, 0));
        assert!(found.is_by_nat() && found.is_sent_elsewhere());
        let found = read(&connection(0x1ae, 17, false)).expect("an exchange");
        assert_eq!(found.protocol, Protocol::UDP);
        let service: Ipv6Addr = "fd00:30::1".parse().expect("an address");
        assert_eq!(found.original.dst, (service, 443).into());
        cut_off_anywhere(&connection(0x1ae, 6, true), |bytes| _ = read(bytes));
    }

    #[test]
    fn tuples_and_not_status_bits_tell_if_a_connection_is_translated() {
        // With IPVS no status bit is set.
        for status in [0x1ae, 0x18e] {
            let found = read(&connection(status, 6, true)).expect("a connection");
            assert!(found.is_sent_elsewhere());
            let mut plain = found.clone();
            plain.reply = Tuple {
                src: plain.original.dst,
                dst: plain.original.src,
            };
            assert!(!plain.is_sent_elsewhere() && !plain.has_another_port());
            let mut renamed = plain.clone();
            renamed.reply.dst.set_port(1);
            assert!(renamed.has_another_port());
            renamed.reply.dst.set_ip([10, 0, 0, 9].into());
            assert!(!renamed.has_another_port(), "a masquerade");
            // A redirect changes only the port.
            plain.reply.src.set_port(1);
            assert!(plain.is_sent_elsewhere());
        }
    }
}
