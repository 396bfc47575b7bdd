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
};

/// `NFNL_SUBSYS_CTNETLINK`, `IPCTNL_MSG_CT_GET`.
const GET: u16 = 1 << 8 | 1;

/// Length of `struct nfgenmsg`, with which every message begins. All zero bytes mean: any family,
/// version 0.
const GENERIC: usize = 4;

/// Numbers of netlink attributes: of a connection, of a tuple, of its addresses and its ports, as
/// linux/netfilter/nfnetlink_conntrack.h has them.
mod kind {
    pub(crate) const TUPLE_ORIGINAL: u16 = 1;
    pub(crate) const TUPLE_REPLY: u16 = 2;
    pub(crate) const STATUS: u16 = 3;
    pub(crate) const ZONE: u16 = 18;

    pub(crate) const TUPLE_IP: u16 = 1;
    pub(crate) const TUPLE_PROTOCOL: u16 = 2;
    pub(crate) const V4_SOURCE: u16 = 1;
    pub(crate) const V4_DESTINATION: u16 = 2;
    pub(crate) const V6_SOURCE: u16 = 3;
    pub(crate) const V6_DESTINATION: u16 = 4;
    pub(crate) const NUMBER: u16 = 1;
    pub(crate) const SOURCE_PORT: u16 = 2;
    pub(crate) const DESTINATION_PORT: u16 = 3;
}

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
    let word = |kind| Some(u32::from_be_bytes(array(attributes, kind)?));
    let (protocol, original) = tuple(attribute(attributes, kind::TUPLE_ORIGINAL)?)?;
    let (_, reply) = tuple(attribute(attributes, kind::TUPLE_REPLY)?)?;
    Some(Tracked {
        protocol,
        original,
        reply,
        status: word(kind::STATUS)?,
        zone: array(attributes, kind::ZONE).map_or(0, u16::from_be_bytes),
    })
}

fn tuple(tuple: &[u8]) -> Option<(Protocol, Tuple)> {
    let transport = attribute(tuple, kind::TUPLE_PROTOCOL)?;
    let port = |kind| Some(u16::from_be_bytes(array(transport, kind)?));
    let (src, dst) = (port(kind::SOURCE_PORT)?, port(kind::DESTINATION_PORT)?);
    let addresses = attribute(tuple, kind::TUPLE_IP)?;
    let ip = |v4, v6| attribute(addresses, v4).or_else(|| attribute(addresses, v6));
    let source = ip(kind::V4_SOURCE, kind::V6_SOURCE).and_then(address)?;
    let destination = ip(kind::V4_DESTINATION, kind::V6_DESTINATION).and_then(address)?;
    let [number] = array(transport, kind::NUMBER)?;
    let tuple = Tuple {
        src: SocketAddr::new(source, src),
        dst: SocketAddr::new(destination, dst),
    };
    Some((Protocol(number), tuple))
}

#[cfg(test)]
mod tests;
