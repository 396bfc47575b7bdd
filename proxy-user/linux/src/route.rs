// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The kernel's choices for one packet: its route, and the interfaces on it. By rtnetlink, one
//! request for each. Called by `interfaces` and `portolan explain`.

use std::{io, net::IpAddr};

use netlink_packet_core::{NLM_F_ACK, NLM_F_CREATE};
use netlink_sys::protocols::NETLINK_ROUTE;

use super::{
    answers::{none_if, text},
    netlink::{Connection, address, array, attribute, encode, family_and_octets, number},
};

pub(super) const GET_LINK: u16 = 18;
pub(super) const GET_ROUTE: u16 = 26;
pub(super) const GET_NEIGHBOUR: u16 = 30;
/// Length of `struct rtmsg` and of `struct ndmsg`.
pub(super) const HEADER: usize = 12;
/// Length of `struct ifinfomsg`.
pub(super) const LINK_HEADER: usize = 16;

/// The kernel's routing decision for a packet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Routed {
    /// This node itself receives the packet.
    Here,
    /// The packet leaves by the interface with this index, to this neighbour.
    Leaves { interface: u32, neighbour: IpAddr },
    /// There is no route, or one that drops the packet.
    None,
}

/// A packet from elsewhere that this node is to forward.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Incoming {
    pub source: IpAddr,
    /// Index of the interface by which the packet comes in; if that is a bridge's port, index of
    /// the bridge.
    pub interface: u32,
    pub mark: u32,
}

/// What the kernel says about an interface.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LinkFacts {
    pub name: String,
    /// Index of the bridge, bond or VRF to which the interface belongs; None if it belongs to none.
    pub master: Option<u32>,
    /// The interface's link-layer address; None unless it has six bytes.
    pub mac: Option<[u8; 6]>,
    pub is_bridge: bool,
}

/// The kernel's errors for a packet without a route: a blackhole or a source that it does not
/// accept, `unreachable`, `prohibit`, none.
const REFUSALS: [i32; 5] = [
    libc::EINVAL,
    libc::EXDEV,
    libc::EHOSTUNREACH,
    libc::EACCES,
    libc::ENETUNREACH,
];

/// Returns the route of the packet `incoming` to the address `to`; with None, the route of a packet
/// which this node itself sends.
pub fn route(to: IpAddr, incoming: Option<Incoming>) -> io::Result<Routed> {
    const DESTINATION: u16 = 1;
    const SOURCE: u16 = 2;
    const INCOMING: u16 = 3;
    const MARK: u16 = 16;
    let (family, octets) = family_and_octets(to);
    let mut request = vec![0; HEADER];
    (request[0], request[1]) = (family, octets.len() as u8 * 8);
    request.extend(encode(DESTINATION, &octets));
    if let Some(incoming) = incoming {
        let (_, source) = family_and_octets(incoming.source);
        request[2] = source.len() as u8 * 8;
        request.extend(encode(SOURCE, &source));
        request.extend(encode(INCOMING, &incoming.interface.to_ne_bytes()));
        request.extend(encode(MARK, &incoming.mark.to_ne_bytes()));
    }
    let connection = Connection::open(NETLINK_ROUTE)?;
    let found = connection.ask_one(GET_ROUTE, &request, |answer| routed(answer, to));
    let found = none_if(&REFUSALS, found)?.flatten();
    Ok(found.unwrap_or(Routed::None))
}

pub(super) fn routed(answer: &[u8], to: IpAddr) -> Option<Routed> {
    const OUTGOING: u16 = 4;
    const GATEWAY: u16 = 5;
    const VIA: u16 = 18;
    const KIND: usize = 7;
    let (header, attributes) = answer.split_at_checked(HEADER)?;
    let via = || attribute(attributes, VIA).and_then(|via| via.get(2..));
    let gateway = attribute(attributes, GATEWAY).or_else(via);
    Some(match header[KIND] {
        1 => Routed::Leaves {
            interface: number(attributes, OUTGOING)?,
            neighbour: gateway.and_then(address).unwrap_or(to),
        },
        2 => Routed::Here,
        _ => Routed::None,
    })
}

/// Returns what the kernel says of an interface; fails with `ENODEV` if no interface has the index.
pub fn link(index: u32) -> io::Result<LinkFacts> {
    ask_link(index, link_facts)?.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Whether an interface with this index exists, as far as the kernel says. An error means that it
/// may.
pub fn has_link(index: u32) -> bool {
    let answered = link(index);
    !answered.is_err_and(|error| error.raw_os_error() == Some(libc::ENODEV))
}

/// Asks for an interface, and returns what `read` finds in the answer.
pub(super) fn ask_link<T>(index: u32, read: impl Fn(&[u8]) -> Option<T>) -> io::Result<Option<T>> {
    let mut request = [0; LINK_HEADER];
    request[4..8].copy_from_slice(&index.to_ne_bytes());
    Connection::open(NETLINK_ROUTE)?.ask_one(GET_LINK, &request, read)
}

fn link_facts(answer: &[u8]) -> Option<LinkFacts> {
    const ADDRESS: u16 = 1;
    const NAME: u16 = 3;
    const MASTER: u16 = 10;
    const INFO: u16 = 18;
    const KIND: u16 = 1;
    let (_, attributes) = answer.split_at_checked(LINK_HEADER)?;
    Some(LinkFacts {
        name: text(attribute(attributes, NAME)?),
        master: number(attributes, MASTER),
        mac: array(attributes, ADDRESS),
        is_bridge: attribute(attributes, INFO)
            .and_then(|info| attribute(info, KIND))
            .is_some_and(|kind| kind.starts_with(b"bridge\0")),
    })
}

/// Has the kernel ask for a neighbour (ARP, neighbour solicitation), as it does before a packet to
/// it. Does not wait for the answer.
pub fn ask_neighbour(interface: u32, address: IpAddr) -> io::Result<()> {
    const NEW_NEIGHBOUR: u16 = 28;
    const ADDRESS: u16 = 1;
    /// The offset of the state in `struct ndmsg`; the state has two bytes, the flags follow.
    const STATE: usize = 8;
    const FLAGS: usize = 10;
    /// Flag: the kernel shall use the neighbour.
    const USE: u8 = 1;
    // States: reachable, stale or delayed; being asked; without a need to ask, or permanent.
    const KNOWN: u16 = 0x02 | 0x04 | 0x08;
    const PROBE: u16 = 0x10;
    const LEFT_ALONE: u16 = 0x01 | PROBE | 0x40 | 0x80;
    let request = |state: u16, flags: u8| {
        let (family, octets) = family_and_octets(address);
        let mut request = vec![0; HEADER];
        request[0] = family;
        request[4..8].copy_from_slice(&interface.to_ne_bytes());
        request[STATE..FLAGS].copy_from_slice(&state.to_ne_bytes());
        request[FLAGS] = flags;
        request.extend(encode(ADDRESS, &octets));
        request
    };
    let connection = Connection::open(NETLINK_ROUTE)?;
    let state = |answer: &[u8]| Some(u16::from_ne_bytes(*answer.get(STATE..)?.first_chunk()?));
    // An error also means that the kernel does not know the neighbour.
    let state = connection.ask_one(GET_NEIGHBOUR, &request(0, 0), state);
    let request = match state.ok().flatten().unwrap_or(0) {
        state if state & LEFT_ALONE != 0 => return Ok(()),
        state if state & KNOWN != 0 => request(PROBE, 0),
        _ => request(0, USE),
    };
    let flags = NLM_F_ACK | NLM_F_CREATE;
    connection.ask(NEW_NEIGHBOUR, flags, &request, |_| ())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::tests::cut_off_anywhere;

    #[test]
    fn route_and_link_of_the_loopback_interface_can_be_looked_up() {
        let found = route([127, 0, 0, 1].into(), None);
        assert_eq!(found.expect("an answer"), Routed::Here);
        let loopback = link(1).expect("loopback");
        assert_eq!((loopback.name.as_str(), loopback.master), ("lo", None));
        let missing = link(u32::MAX >> 1).map_err(|e| e.raw_os_error());
        assert_eq!(missing, Err(Some(libc::ENODEV)));
    }

    #[test]
    fn a_route_is_parsed_with_its_neighbour_and_truncation_does_not_panic() {
        let mut header = [0; HEADER];
        header[7] = 1;
        let parts = [encode(4, &7_u32.to_ne_bytes()), encode(5, &[192, 0, 2, 1])];
        let answer = [&header[..], &parts.concat()].concat();
        let to = IpAddr::from([10, 0, 0, 1]);
        let direct = [&header[..], &parts[0]].concat();
        for (answer, neighbour) in [(&answer, IpAddr::from([192, 0, 2, 1])), (&direct, to)] {
            let found = Routed::Leaves {
                interface: 7,
                neighbour,
            };
            assert_eq!(routed(answer, to), Some(found));
        }
        cut_off_anywhere(&answer, |bytes| {
            _ = routed(bytes, to);
            _ = link_facts(bytes);
        });
        header[7] = 6;
        assert_eq!(routed(&header, to), Some(Routed::None), "a blackhole");
    }
}
