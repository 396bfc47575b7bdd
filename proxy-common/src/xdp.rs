// SPDX-License-Identifier: Apache-2.0 OR MIT
//! XDP at uplinks: which packets XDP takes (translates and sends on by itself), and how long it
//! trusts a cached next hop. All other packets go on to tc unchanged, so policy and every change of
//! a flow's state stay at tc.
//!
//! XDP takes packets of masqueraded flows that change no state: both translations are known, and
//! neither end of the flow is on this node.

use crate::{
    Addr, FlowEntry, FlowKind, FlowState, Protocol,
    flow::{Anew, Signals, begins_anew, is_routine},
    ports,
};

/// Bits in the `ports` map of the destination ports of packets that XDP may take.
const TAKEN: u64 = ports::FRONTEND | ports::NODE_PORT | ports::MASQUERADE;

/// Whether a packet to a port with these bits (see [`ports`]) may belong to a flow whose packets
/// XDP takes.
#[inline(always)]
pub const fn may_take(bits: u64) -> bool {
    bits & TAKEN != 0
}

/// Whether XDP takes a packet of this protocol with these signals: a datagram, or a segment in the
/// middle of a connection.
#[inline(always)]
pub fn takes(protocol: Protocol, signals: Signals) -> bool {
    match protocol {
        Protocol::TCP => signals.goes_on(),
        _ => protocol == Protocol::UDP,
    }
}

/// Whether both translations of a flow can be done at once: the entry has both, and no end of the
/// flow needs the stack. An entry made by an older version has only one translation.
#[inline(always)]
const fn is_complete<A: Addr>(entry: &FlowEntry<A>) -> bool {
    !entry.needs_stack() && entry.knows_masquerade()
}

/// Whether XDP takes a client's packet with this original entry, after [`takes`] has returned true.
/// `serves` returns whether the backend serves; it is called for datagrams only.
#[inline(always)]
pub fn takes_original<A: Addr>(
    entry: &FlowEntry<A>,
    protocol: Protocol,
    signals: Signals,
    serves: impl FnOnce() -> bool,
) -> bool {
    is_complete(entry)
        && entry.is_masqueraded()
        && entry.state == FlowState::ESTABLISHED
        && begins_anew(protocol, signals, entry.state, || false, || true, serves) == Anew::No
}

/// Whether XDP takes a reply with this masqueraded reply entry, after [`takes`] has returned true.
#[inline(always)]
pub fn takes_reply<A: Addr>(entry: &FlowEntry<A>) -> bool {
    entry.kind == FlowKind::MASQUERADED_REPLY && is_complete(entry)
}

/// Whether a reply with this masqueraded reply entry must be accounted in the flow's other entries:
/// every reply that is not routine ([`is_routine`]). The masqueraded reply's entry remembers the
/// last accounted reply; the entry's state is not new once a reply was accounted.
#[inline(always)]
pub fn is_due<A: Addr>(
    entry: &FlowEntry<A>,
    protocol: Protocol,
    signals: Signals,
    acknowledged: u32,
    now: u64,
) -> bool {
    let age = now.wrapping_sub(entry.last_seen);
    !entry.state.has(FlowState::ANSWERED)
        || !is_routine(protocol, signals, acknowledged, entry.sequence, age)
}

/// Whether a reply changes nothing in a flow whose original entry has this state.
#[inline(always)]
pub fn is_settled(state: FlowState, protocol: Protocol) -> bool {
    // A closing connection stays closing; only the doubts that data clears need tc, and the answer
    // to the client's FIN.
    const DOUBTS: u32 = FlowState::RESET.0 | FlowState::RENEWED.0;
    state.has(FlowState::ANSWERED)
        && state.0 & DOUBTS == 0
        && !(state.has(FlowState::CLIENT_FIN) && state.awaits_answer_to_fin())
        && (protocol == Protocol::UDP || state.has(FlowState::ACKNOWLEDGED))
}

/// How long a cached next hop is trusted, in nanoseconds.
pub const BELIEVED: u64 = 1_000_000_000;

/// What to do with a cached next hop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Freshness {
    /// The cached next hop can be used.
    Fresh,
    /// The next hop has been trusted long enough: look the route up again, and leave this packet to
    /// the stack. So the stack learns that the neighbour is in use and keeps it up to date.
    Aged,
    /// The next hop was cached for another packet, or routes and neighbours may have changed: look
    /// the route up.
    Other,
}

/// Returns the freshness of a next hop that was cached at `filled`. `matches`: it was cached for
/// the packet's destination, in the current epoch of routes and neighbours.
#[inline(always)]
pub fn freshness(matches: bool, filled: u64, now: u64) -> Freshness {
    if !matches {
        Freshness::Other
    } else if now.wrapping_sub(filled) < BELIEVED {
        Freshness::Fresh
    } else {
        Freshness::Aged
    }
}

/// What XDP may do at an uplink.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Abilities {
    /// Packets that come in by the uplink may be translated and sent on.
    pub receives: bool,
    /// Frames may be redirected to the uplink.
    pub sends: bool,
    /// Frames that came in by the uplink may leave by it, by XDP_TX.
    pub returns: bool,
}

impl Abilities {
    pub const ALL: Self = Self {
        receives: true,
        sends: true,
        returns: true,
    };
}

/// How a frame leaves the node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Exit {
    /// The frame goes through the stack.
    Stack,
    /// Back out of the interface that the frame came in by.
    Return,
    /// Out of the interface with a given index; it may be the one that the frame came in by.
    Redirect,
}

/// Returns how a frame that came in by `ingress` leaves by `egress`; `is_same`: both are the same
/// interface.
#[inline(always)]
pub fn exit(ingress: Uplink, egress: Uplink, is_same: bool) -> Exit {
    if !ingress.has(Uplink::RECEIVES) {
        Exit::Stack
    } else if is_same && ingress.has(Uplink::RETURNS) {
        Exit::Return
    } else if egress.has(Uplink::SENDS) {
        Exit::Redirect
    } else {
        Exit::Stack
    }
}

/// The agent's data on an uplink with our XDP program, in one word: value of the map `uplinks`. The
/// lower 48 bits are the uplink's link-layer address, octets as on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(transparent)]
pub struct Uplink(pub u64);

impl Uplink {
    const RECEIVES: u64 = 1 << 48;
    const SENDS: u64 = 1 << 49;
    const RETURNS: u64 = 1 << 50;

    /// Returns the word of an uplink with this link-layer address.
    pub const fn new(mac: [u8; 6], abilities: Abilities) -> Self {
        let [a, b, c, d, e, f] = mac;
        let bits = (abilities.receives as u64 * Self::RECEIVES)
            | (abilities.sends as u64 * Self::SENDS)
            | (abilities.returns as u64 * Self::RETURNS);
        Self(bits | u64::from_le_bytes([a, b, c, d, e, f, 0, 0]))
    }
    #[inline(always)]
    const fn has(self, ability: u64) -> bool {
        self.0 & ability != 0
    }
    /// Returns the link-layer address as it lies in a frame: the first four octets, then the last
    /// two.
    #[inline(always)]
    pub const fn address(self) -> (u32, u16) {
        ((self.0 as u32).to_le(), ((self.0 >> 32) as u16).to_le())
    }
}

#[cfg(test)]
mod tests;
