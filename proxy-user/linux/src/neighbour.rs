// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether a neighbour answers: its state in the kernel's table, and the request by ARP or
//! neighbour discovery, which the kernel sends. Called by `portolan explain`.

use std::{
    io,
    net::IpAddr,
    thread,
    time::{Duration, Instant},
};

use netlink_packet_core::{NLM_F_ACK, NLM_F_CREATE};
use netlink_sys::protocols::NETLINK_ROUTE;

use super::{
    answers::none_if,
    netlink::{Connection, encode, family_and_octets},
    route::{GET_NEIGHBOUR, HEADER},
};

const NEW_NEIGHBOUR: u16 = 28;
const ADDRESS: u16 = 1;
/// The offset of the state in `struct ndmsg`; the state has two bytes, the flags follow.
const STATE: usize = 8;
const FLAGS: usize = 10;

// States of a neighbour (`NUD_`).
const INCOMPLETE: u16 = 0x01;
const REACHABLE: u16 = 0x02;
const STALE: u16 = 0x04;
const DELAY: u16 = 0x08;
const PROBE: u16 = 0x10;
const FAILED: u16 = 0x20;
const NO_ARP: u16 = 0x40;
const PERMANENT: u16 = 0x80;

/// What the kernel knows of a neighbour.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NeighbourState {
    /// The kernel has not asked for it.
    Unknown,
    /// It has answered within the last seconds.
    Answers,
    /// It has answered some time ago.
    Stale,
    /// The kernel asks for it at this moment.
    Asked,
    /// The kernel has asked for it in vain.
    Failed,
    /// Its link-layer address is set by hand, or it needs none: nobody is asked.
    Fixed,
}

impl NeighbourState {
    fn new(state: u16) -> Self {
        match state {
            state if state & (PERMANENT | NO_ARP) != 0 => Self::Fixed,
            state if state & REACHABLE != 0 => Self::Answers,
            state if state & (STALE | DELAY) != 0 => Self::Stale,
            state if state & (INCOMPLETE | PROBE) != 0 => Self::Asked,
            state if state & FAILED != 0 => Self::Failed,
            _ => Self::Unknown,
        }
    }

    /// True if the neighbour answers, or need not.
    pub fn is_well(self) -> bool {
        matches!(self, Self::Answers | Self::Fixed)
    }
}

/// A neighbour: the index of the interface that leads to it, and its address.
pub type Neighbour = (u32, IpAddr);

/// Returns what the kernel knows of a neighbour.
fn neighbour_state(neighbour: Neighbour) -> io::Result<NeighbourState> {
    let state = Connection::open(NETLINK_ROUTE)?.ask_one(
        GET_NEIGHBOUR,
        &request(neighbour, 0, 0),
        |answer| {
            let state = answer.get(STATE..)?.first_chunk()?;
            Some(u16::from_ne_bytes(*state))
        },
    );
    // The neighbour is not known yet, or the interface has no neighbours.
    let state = none_if(&[libc::ENOENT, libc::EINVAL], state)?.flatten();
    Ok(state.map_or(NeighbourState::Unknown, NeighbourState::new))
}

/// Has the kernel ask for those neighbours that it does not know to answer; with `again`, also for
/// those that have answered lately. Waits for their answers, and returns the state of each.
pub fn ask_neighbours(
    neighbours: &[Neighbour],
    again: bool,
    patience: Duration,
) -> io::Result<Vec<NeighbourState>> {
    const PAUSE: Duration = Duration::from_millis(10);
    let all = || neighbours.iter().copied();
    let known: Vec<_> = all().map(neighbour_state).collect::<io::Result<_>>()?;
    if !again && known.iter().all(|state| state.is_well()) {
        return Ok(known);
    }
    for (neighbour, state) in all().zip(known) {
        ask(neighbour, state)?;
    }
    let deadline = Instant::now() + patience;
    loop {
        thread::sleep(PAUSE);
        let states: Vec<_> = all().map(neighbour_state).collect::<io::Result<_>>()?;
        if states.iter().all(|state| state.is_well()) || Instant::now() > deadline {
            return Ok(states);
        }
    }
}

/// Has the kernel ask for a neighbour, as it does for a packet to it.
fn ask(neighbour: Neighbour, state: NeighbourState) -> io::Result<()> {
    const USE: u8 = 1;
    let payload = match state {
        NeighbourState::Fixed | NeighbourState::Asked => return Ok(()),
        NeighbourState::Unknown | NeighbourState::Failed => request(neighbour, 0, USE),
        NeighbourState::Answers | NeighbourState::Stale => request(neighbour, PROBE, 0),
    };
    let flags = NLM_F_ACK | NLM_F_CREATE;
    Connection::open(NETLINK_ROUTE)?.ask(NEW_NEIGHBOUR, flags, &payload, |_| ())
}

/// Returns the payload of a request about a neighbour.
fn request((interface, address): Neighbour, state: u16, flags: u8) -> Vec<u8> {
    let (family, octets) = family_and_octets(address);
    let mut request = vec![0; HEADER];
    request[0] = family;
    request[4..8].copy_from_slice(&interface.to_ne_bytes());
    request[STATE..STATE + 2].copy_from_slice(&state.to_ne_bytes());
    request[FLAGS] = flags;
    request.extend(encode(ADDRESS, &octets));
    request
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_of_neighbours_are_told_apart() {
        for (bits, state) in [
            (0, NeighbourState::Unknown),
            (INCOMPLETE, NeighbourState::Asked),
            (REACHABLE, NeighbourState::Answers),
            (DELAY, NeighbourState::Stale),
            (FAILED, NeighbourState::Failed),
            (PERMANENT, NeighbourState::Fixed),
        ] {
            assert_eq!(NeighbourState::new(bits), state, "{bits:#x}");
        }
    }

    #[test]
    fn no_neighbour_is_known_at_the_loopback_interface() {
        let state = neighbour_state((1, [127, 0, 0, 1].into())).expect("an answer");
        assert_eq!(state, NeighbourState::Unknown);
    }
}
