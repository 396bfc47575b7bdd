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
mod tests;
