// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Replaces connections of nf_conntrack, by ctnetlink. Called by `import`.

use std::{
    io,
    net::{IpAddr, SocketAddr},
};

use netlink_packet_core::{NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL};
use netlink_sys::protocols::NETLINK_NETFILTER;
use proxy_common::Protocol;

use super::{
    conntrack::{Tracked, Tuple, kind},
    netlink::{Connection, attribute, encode},
};

/// `NFNL_SUBSYS_CTNETLINK` with `IPCTNL_MSG_CT_NEW` and `IPCTNL_MSG_CT_DELETE`.
const NEW: u16 = 1 << 8;
const DELETE: u16 = 1 << 8 | 2;
const CREATE: u16 = NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL;

/// A connection to ctnetlink that changes the table of this network namespace.
pub struct Editor(Connection);

impl Editor {
    pub fn open() -> io::Result<Self> {
        Connection::open(NETLINK_NETFILTER).map(Self)
    }
    /// Enters a connection that goes from end to end of `tuple` untranslated, in the state that `like` has. An error of the kind
    /// `AlreadyExists`: one of the two tuples is there.
    pub fn create(&self, tuple: Tuple, like: &Tracked) -> io::Result<()> {
        self.tell([(NEW, CREATE, &created(tuple, like))])
            .and_then(|[created]| created)
    }
    /// Removes this very connection; whether it was there.
    pub fn remove(&self, tracked: &Tracked) -> io::Result<bool> {
        let [removed] = self.tell([(DELETE, NLM_F_ACK, &removed(tracked))])?;
        was_there(removed)
    }
    /// Removes the connection that has this tuple in either direction; whether there was one.
    pub fn remove_tuple(&self, protocol: Protocol, tuple: Tuple) -> io::Result<bool> {
        let [removed] = self.tell([(DELETE, NLM_F_ACK, &named(protocol, tuple))])?;
        was_there(removed)
    }
    /// Does the first two with no more than a moment between: removes this connection and enters one between the ends of `tuple`. The
    /// results of both.
    pub fn replace(
        &self,
        tracked: &Tracked,
        tuple: Tuple,
    ) -> io::Result<(io::Result<bool>, io::Result<()>)> {
        let (old, new) = (removed(tracked), created(tuple, tracked));
        let [removed, created] = self.tell([(DELETE, NLM_F_ACK, &old), (NEW, CREATE, &new)])?;
        Ok((was_there(removed), created))
    }

    fn tell<const N: usize>(
        &self,
        requests: [(u16, u16, &[u8]); N],
    ) -> io::Result<[io::Result<()>; N]> {
        self.0.tell(requests)
    }
}

fn was_there(removed: io::Result<()>) -> io::Result<bool> {
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        removed => removed.map(|()| true),
    }
}

/// The request to remove what has this tuple. Without the tuple the kernel would remove everything.
fn named(protocol: Protocol, tuple: Tuple) -> Vec<u8> {
    let mut request = generic(tuple);
    request.extend(nested(kind::TUPLE_ORIGINAL, &encoded(protocol, tuple)));
    request
}

fn removed(tracked: &Tracked) -> Vec<u8> {
    let mut request = named(tracked.protocol, tracked.original);
    request.extend(encode(kind::ID, &tracked.id.to_be_bytes()));
    request
}

fn created(tuple: Tuple, like: &Tracked) -> Vec<u8> {
    /// The kernel wants to hear that it is in the table.
    const CONFIRMED: u32 = 1 << 3;
    let status = CONFIRMED | like.status & (Tracked::SEEN_REPLY | Tracked::ASSURED);
    let mut request = named(like.protocol, tuple);
    let reply = encoded(like.protocol, tuple.reversed());
    request.extend(nested(kind::TUPLE_REPLY, &reply));
    request.extend(encode(kind::STATUS, &status.to_be_bytes()));
    request.extend(encode(kind::TIMEOUT, &like.timeout.max(1).to_be_bytes()));
    request.extend(encode(kind::MARK, &like.mark.to_be_bytes()));
    match like.protocol {
        Protocol::TCP => {
            let info = nested(kind::TCP, &tcp_info(&like.protocol_info));
            request.extend(nested(kind::PROTOCOL_INFO, &info));
        }
        Protocol::SCTP => request.extend(nested(kind::PROTOCOL_INFO, &like.protocol_info)),
        _ => {}
    }
    request
}

/// TCP's state as it was, and window scales. The windows themselves are not told, so each side is believed about them.
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
        // Flags, and which of them are to be set.
        let value = [flags.copied().unwrap_or(0) | LIBERAL, 0xff];
        encoded.extend(encode(kind, &value));
    }
    encoded
}

/// `struct nfgenmsg`: the family, version 0.
fn generic(tuple: Tuple) -> Vec<u8> {
    let family = match tuple.src.ip() {
        IpAddr::V4(_) => libc::AF_INET,
        IpAddr::V6(_) => libc::AF_INET6,
    };
    vec![family as u8, 0, 0, 0]
}

fn encoded(protocol: Protocol, tuple: Tuple) -> Vec<u8> {
    let address = |v4, v6, end: SocketAddr| match end.ip() {
        IpAddr::V4(ip) => encode(v4, &ip.octets()),
        IpAddr::V6(ip) => encode(v6, &ip.octets()),
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

fn nested(kind: u16, value: &[u8]) -> Vec<u8> {
    const NESTED: u16 = 1 << 15;
    encode(kind | NESTED, value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::datapath::sys::conntrack::tracked;

    fn all_of(port: u16) -> Vec<Tracked> {
        let mut found = Vec::new();
        let visited = tracked(|tracked| {
            if tracked.original.src.port() == port {
                found.push(tracked);
            }
        });
        visited.expect("the kernel answers");
        found
    }

    /// Numbers of no other test, from ranges for documents, and what nobody sends.
    fn example(family: u16, port: u16) -> (Tuple, Tracked) {
        let (src, dst) = if family == 4 {
            ("192.0.2.1:0", "198.51.100.7:80")
        } else {
            ("[2001:db8::1]:0", "[2001:db8:1::7]:80")
        };
        let mut src: SocketAddr = src.parse().expect("an address");
        src.set_port(port);
        let dst = dst.parse().expect("an address");
        let tuple = Tuple { src, dst };
        let state = nested(kind::TCP, &encode(kind::STATE, &[3]));
        let like = Tracked {
            protocol: Protocol::TCP,
            original: tuple,
            reply: tuple.reversed(),
            status: Tracked::SEEN_REPLY | Tracked::ASSURED,
            id: 0,
            timeout: 600,
            mark: 0,
            zone: 0,
            protocol_info: state,
        };
        (tuple, like)
    }

    #[test]
    fn a_connection_is_entered_found_replaced_and_removed() {
        let editor = Editor::open().expect("ctnetlink");
        for (family, port) in [(4, 61_234), (6, 61_235)] {
            let (tuple, like) = example(family, port);
            editor.create(tuple, &like).expect("run as root");
            let again = editor.create(tuple, &like).expect_err("it is there");
            assert_eq!(again.kind(), io::ErrorKind::AlreadyExists);
            let [found] = &all_of(port)[..] else {
                panic!("one: {:?}", all_of(port))
            };
            assert_eq!((found.original, found.reply), (tuple, tuple.reversed()));
            assert!(found.has(Tracked::SEEN_REPLY | Tracked::ASSURED));
            assert_eq!((found.state(), found.protocol), (Some(3), Protocol::TCP));

            let mut other = found.clone();
            other.id ^= 1;
            assert!(!editor.remove(&other).expect("an answer"), "another's id");
            let mut to = tuple;
            to.dst.set_port(8080);
            let (removed, created) = editor.replace(found, to).expect("answers");
            assert!(removed.expect("removed"));
            created.expect("created");
            let now = all_of(port);
            assert_eq!(now.len(), 1);
            assert_eq!(now[0].original, to);
            let reply = to.reversed();
            assert!(editor.remove_tuple(Protocol::TCP, reply).expect("removed"));
            assert!(!editor.remove_tuple(Protocol::TCP, reply).expect("gone"));
            assert_eq!(all_of(port), []);
        }
    }

    #[test]
    fn every_request_names_a_connection() {
        let (tuple, like) = example(4, 1);
        for request in [removed(&like), named(Protocol::UDP, tuple)] {
            assert!(attribute(&request[4..], kind::TUPLE_ORIGINAL).is_some());
        }
    }
}
