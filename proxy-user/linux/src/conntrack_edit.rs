// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Creates, replaces and removes entries of nf_conntrack (connections), by ctnetlink. Called by
//! `datapath::import`.

use std::{io, net::SocketAddr};

use netlink_packet_core::{NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL};
use netlink_sys::protocols::NETLINK_NETFILTER;
use proxy_common::Protocol;

use super::{
    answers::none_if,
    conntrack::{GENERIC, GET, Tracked, Tuple, kind, read},
    netlink::{Connection, attribute, encode, family_and_octets, nested},
};

/// `NFNL_SUBSYS_CTNETLINK` with `IPCTNL_MSG_CT_NEW` and `IPCTNL_MSG_CT_DELETE`.
const NEW: u16 = 1 << 8;
const DELETE: u16 = 1 << 8 | 2;
const CREATE: u16 = NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL;

/// A netlink socket that changes the connections in nf_conntrack of this network namespace.
pub struct Editor(Connection);

impl Editor {
    pub fn open() -> io::Result<Self> {
        Connection::open(NETLINK_NETFILTER).map(Self)
    }
    /// Returns this connection as it is now; None if it has ended, even if another connection has
    /// its tuple.
    pub fn find(&self, tracked: &Tracked) -> io::Result<Option<Tracked>> {
        let request = named(tracked.protocol, tracked.original);
        let mut found = None;
        let asked = self.0.ask(GET, NLM_F_ACK, &request, |answer| {
            found = read(answer.get(GENERIC..).unwrap_or_default());
        });
        let is_there = was_there(asked)?;
        Ok(found.filter(|found| is_there && found.id == tracked.id))
    }
    /// Creates a connection; the kernel gives it a new id. Fails with `AlreadyExists` if a
    /// connection has one of its tuples.
    pub fn create(&self, tracked: &Tracked) -> io::Result<()> {
        self.0
            .tell([(NEW, CREATE, &created(tracked))])
            .and_then(|[created]| created)
    }
    /// Removes this connection, but no other connection with its tuple; true if it existed.
    pub fn remove(&self, tracked: &Tracked) -> io::Result<bool> {
        let [removed] = self.0.tell([(DELETE, NLM_F_ACK, &removed(tracked))])?;
        was_there(removed)
    }
    /// Removes the connection that has this tuple in either direction; true if there was one.
    pub fn remove_tuple(&self, protocol: Protocol, tuple: Tuple) -> io::Result<bool> {
        let request = named(protocol, tuple);
        let [removed] = self.0.tell([(DELETE, NLM_F_ACK, &request)])?;
        was_there(removed)
    }
    /// Removes one connection and creates another, with almost no time between. Returns both
    /// results: true if the old one existed, and whether the new one was created.
    pub fn replace(
        &self,
        old: &Tracked,
        new: &Tracked,
    ) -> io::Result<(io::Result<bool>, io::Result<()>)> {
        let (old, new) = (removed(old), created(new));
        let requests = [(DELETE, NLM_F_ACK, &*old), (NEW, CREATE, &*new)];
        let [removed, created] = self.0.tell(requests)?;
        Ok((was_there(removed), created))
    }
}

fn was_there(removed: io::Result<()>) -> io::Result<bool> {
    Ok(none_if(&[libc::ENOENT], removed)?.is_some())
}

/// Returns the start of a request about the connection with this tuple. Never leave the tuple out:
/// without a tuple, a request to remove makes the kernel remove all connections.
fn named(protocol: Protocol, tuple: Tuple) -> Vec<u8> {
    let (family, _) = family_and_octets(tuple.src.ip());
    // `struct nfgenmsg`: the family, version 0.
    let mut request = vec![family, 0, 0, 0];
    request.extend(nested(kind::TUPLE_ORIGINAL, &encoded(protocol, tuple)));
    request
}

fn removed(tracked: &Tracked) -> Vec<u8> {
    let mut request = named(tracked.protocol, tracked.original);
    request.extend(encode(kind::ID, &tracked.id.to_be_bytes()));
    request
}

fn created(tracked: &Tracked) -> Vec<u8> {
    /// Status bit that the kernel requires: the connection is in the table.
    const CONFIRMED: u32 = 1 << 3;
    let status = CONFIRMED | tracked.status & (Tracked::SEEN_REPLY | Tracked::ASSURED);
    let mut request = named(tracked.protocol, tracked.original);
    let reply = encoded(tracked.protocol, tracked.reply);
    request.extend(nested(kind::TUPLE_REPLY, &reply));
    request.extend(encode(kind::STATUS, &status.to_be_bytes()));
    let timeout = tracked.timeout.max(1).to_be_bytes();
    request.extend(encode(kind::TIMEOUT, &timeout));
    request.extend(encode(kind::MARK, &tracked.mark.to_be_bytes()));
    let info = &tracked.protocol_info;
    match tracked.protocol {
        Protocol::TCP => {
            let info = nested(kind::TCP, &tcp_info(info));
            request.extend(nested(kind::PROTOCOL_INFO, &info));
        }
        Protocol::SCTP => request.extend(nested(kind::PROTOCOL_INFO, info)),
        _ => {}
    }
    request
}

/// Encodes TCP's state and window scales. The windows themselves are not passed on, so a flag makes
/// conntrack accept any window of either side.
fn tcp_info(info: &[u8]) -> Vec<u8> {
    const LIBERAL: u8 = 1 << 3;
    let info = attribute(info, kind::TCP).unwrap_or_default();
    let mut encoded = Vec::new();
    for kind in [kind::STATE, kind::TCP_SCALE_ORIGINAL, kind::TCP_SCALE_REPLY] {
        if let Some(value) = attribute(info, kind) {
            encoded.extend(encode(kind, value));
        }
    }
    for kind in [kind::TCP_FLAGS_ORIGINAL, kind::TCP_FLAGS_REPLY] {
        let flags = attribute(info, kind).and_then(|flags| flags.first());
        // The flags, and the mask of the flags to set.
        let value = [flags.copied().unwrap_or(0) | LIBERAL, 0xff];
        encoded.extend(encode(kind, &value));
    }
    encoded
}

fn encoded(protocol: Protocol, tuple: Tuple) -> Vec<u8> {
    let address = |v4, v6, end: SocketAddr| {
        let (_, octets) = family_and_octets(end.ip());
        encode(if end.is_ipv4() { v4 } else { v6 }, &octets)
    };
    let addresses = [
        address(kind::V4_SOURCE, kind::V6_SOURCE, tuple.src),
        address(kind::V4_DESTINATION, kind::V6_DESTINATION, tuple.dst),
    ];
    let transport = [
        encode(kind::NUMBER, &[protocol.0]),
        encode(kind::SOURCE_PORT, &tuple.src.port().to_be_bytes()),
        encode(kind::DESTINATION_PORT, &tuple.dst.port().to_be_bytes()),
    ];
    [
        nested(kind::TUPLE_IP, &addresses.concat()),
        nested(kind::TUPLE_PROTOCOL, &transport.concat()),
    ]
    .concat()
}
