// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which interface leads to an address: neighbours and bridge ports, by rtnetlink. Called by
//! `portolan explain`.

use std::{collections::HashMap, io, net::IpAddr};

use netlink_packet_core::{NLM_F_ACK, NLM_F_CREATE};
use netlink_sys::protocols::NETLINK_ROUTE;

use super::{
    answers::{none_if, word},
    netlink::{Connection, address, attribute, encode, family_and_octets, number},
    route::{GET_NEIGHBOUR, HEADER},
};

/// A link-layer address, such as an Ethernet address.
type LinkAddress = Vec<u8>;

/// Finds the node's interface that leads to an address.
pub struct Reach {
    connection: Connection,
    /// The link-layer address of each neighbour. Key: interface index and IP address.
    neighbours: HashMap<(u32, IpAddr), LinkAddress>,
    /// The index of the bridge port that leads to a link-layer address. Key: the bridge's index and
    /// the link-layer address.
    ports: HashMap<(u32, LinkAddress), u32>,
}

impl Reach {
    pub fn read() -> io::Result<Self> {
        let mut reach = Self {
            connection: Connection::open(NETLINK_ROUTE)?,
            neighbours: HashMap::new(),
            ports: HashMap::new(),
        };
        for family in [libc::AF_INET, libc::AF_INET6, libc::AF_BRIDGE] {
            let mut request = [0; HEADER];
            request[0] = family as u8;
            let Self {
                connection,
                neighbours,
                ports,
            } = &mut reach;
            let dumped = connection.list(GET_NEIGHBOUR, &request, |answer| {
                if family == libc::AF_BRIDGE {
                    ports.extend(port(answer));
                } else {
                    neighbours.extend(neighbour(answer));
                }
            });
            // A kernel without IPv6 or bridges has no such table.
            none_if(&[libc::EAFNOSUPPORT, libc::EOPNOTSUPP], dumped)?;
        }
        Ok(reach)
    }

    /// Has the kernel ask for a neighbour (ARP, neighbour solicitation), as it does before a packet
    /// to it. Does not wait for the answer.
    pub fn ask(&self, interface: u32, address: IpAddr) -> io::Result<()> {
        const NEW_NEIGHBOUR: u16 = 28;
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
            request.extend(encode(NEIGHBOUR_ADDRESS, &octets));
            request
        };
        let state = |answer: &[u8]| Some(u16::from_ne_bytes(*answer.get(STATE..)?.first_chunk()?));
        // An error also means that the kernel does not know the neighbour.
        let state = self
            .connection
            .ask_one(GET_NEIGHBOUR, &request(0, 0), state);
        let request = match state.ok().flatten().unwrap_or(0) {
            state if state & LEFT_ALONE != 0 => return Ok(()),
            state if state & KNOWN != 0 => request(PROBE, 0),
            _ => request(0, USE),
        };
        let flags = NLM_F_ACK | NLM_F_CREATE;
        self.connection.ask(NEW_NEIGHBOUR, flags, &request, |_| ())
    }

    /// Returns the index of the bridge's port that leads to this address; None if the address is no
    /// known neighbour, or if the bridge does not know the port.
    pub fn port_to(&self, bridge: u32, address: IpAddr) -> Option<u32> {
        let at = self.neighbours.get(&(bridge, address))?;
        self.ports.get(&(bridge, at.clone())).copied()
    }
}

/// Splits an answer with a neighbour into interface index and attributes. `struct ndmsg` begins
/// with the family; the index is at byte 4.
fn parts(answer: &[u8]) -> Option<(u32, &[u8])> {
    let (header, attributes) = answer.split_at_checked(HEADER)?;
    Some((word(header, 4)?, attributes))
}

const NEIGHBOUR_ADDRESS: u16 = 1;
const NEIGHBOUR_LINK: u16 = 2;

fn neighbour(answer: &[u8]) -> Option<((u32, IpAddr), LinkAddress)> {
    let (interface, attributes) = parts(answer)?;
    let address = address(attribute(attributes, NEIGHBOUR_ADDRESS)?)?;
    let link = attribute(attributes, NEIGHBOUR_LINK)?;
    Some(((interface, address), link.to_vec()))
}

fn port(answer: &[u8]) -> Option<((u32, LinkAddress), u32)> {
    const MASTER: u16 = 9;
    let (port, attributes) = parts(answer)?;
    let bridge = number(attributes, MASTER)?;
    let link = attribute(attributes, NEIGHBOUR_LINK)?;
    Some(((bridge, link.to_vec()), port))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::tests::cut_off_anywhere;

    #[test]
    fn neighbours_and_bridge_ports_are_parsed() {
        let header = [2, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0];
        let link = encode(2, &[2, 0, 0, 0, 0, 1]);
        let v4 = [&header[..], &encode(1, &[10, 0, 0, 1]), &link].concat();
        let expected = (7, IpAddr::from([10, 0, 0, 1]));
        assert_eq!(neighbour(&v4).expect("a neighbour").0, expected);
        let at_bridge = [&header[..], &link, &encode(9, &3_u32.to_ne_bytes())].concat();
        let ((bridge, _), interface) = port(&at_bridge).expect("a port");
        assert_eq!((bridge, interface), (3, 7));
        cut_off_anywhere(&at_bridge, |bytes| {
            _ = port(bytes);
            _ = neighbour(bytes);
        });
    }
}
