// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `forwarding: auto`: a packet leaves past the node's stack (without passing the kernel's network
//! stack) only after the stack has let a packet of the same direction pass, unchanged. Egress
//! records that in the flow's entry, and ingress relies on the record for some seconds. So a
//! netfilter rule that is added later takes effect soon.

use super::{FlowEntry, FlowKind, FlowState, Signals};
use crate::{Addr, Protocol, Settings};

/// Shift from nanoseconds to the unit of the clocks in records: 2^32 ns (4.3 s).
const CLOCK_SHIFT: u32 = 32;
/// A TCP record is fresh in the time unit in which it was made, and in this many more units: for
/// 8.6 to 12.9 s.
const FRESH_UNITS: u32 = 2;

/// Returns for how many time units after its own unit a record stays fresh. UDP: 0, so 4.3 s at
/// most. Netfilter's connection tracking keeps datagrams' connections for two minutes instead of
/// 30 s only if it sees a packet two seconds after the first (`nf_conntrack_udp_packet`).
#[inline(always)]
pub const fn fresh_units(protocol: Protocol) -> u32 {
    if protocol.0 == Protocol::UDP.0 {
        0
    } else {
        FRESH_UNITS
    }
}

/// Converts a time of the kernel's monotonic clock, in nanoseconds, to the unit of records.
#[inline(always)]
pub const fn clock(now: u64) -> u32 {
    (now >> CLOCK_SHIFT) as u32
}

/// The record of one direction of a flow: the interface by which its packets leave the stack, and
/// when a packet last left. Interface 0: no packet has left since the stack was asked at that time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(transparent)]
pub struct Offload(u32);

impl Offload {
    pub const NONE: Self = Self(0);

    /// Returns the record of a packet that leaves the stack at `now` by the interface with this
    /// index. The record keeps the lower 24 bits of the index.
    #[inline(always)]
    pub const fn new(interface: u32, now: u64) -> Self {
        Self(interface << 8 | clock(now) & 0xff)
    }
    /// Returns the record of a direction whose packet asks the stack at `now`.
    #[inline(always)]
    pub const fn asked(now: u64) -> Self {
        Self::new(0, now)
    }
    /// Whether the stack was asked in this time unit, and egress has recorded no packet since. In
    /// the one unit in 256 whose clock is 0 each packet asks.
    #[inline(always)]
    pub const fn is_asked(self, now: u64) -> bool {
        self.0 != 0 && self.0 == Self::asked(now).0
    }
    /// Whether the record is fresh at `now`. Its clock has 8 bits (18 minutes), so the flow must
    /// have been seen lately as well: `last_seen` is that field of the flow's entry.
    #[inline(always)]
    pub const fn is_fresh(self, protocol: Protocol, last_seen: u64, now: u64) -> bool {
        let age = clock(now).wrapping_sub(self.0) & 0xff;
        self.interface() != 0
            && age <= fresh_units(protocol)
            && now.wrapping_sub(last_seen) < (FRESH_UNITS as u64 + 1) << CLOCK_SHIFT
    }
    /// Whether the record names the interface with this index.
    #[inline(always)]
    pub const fn is_by(self, interface: u32) -> bool {
        self.0 >> 8 == interface & 0x00ff_ffff
    }
    /// The lower 24 bits of the index of the interface that packets leave by; 0 without a record.
    #[inline(always)]
    pub const fn interface(self) -> u32 {
        self.0 >> 8
    }
}

/// What the node's settings, the protocol and a packet's signals alone say about the packet's path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Consent {
    /// No netfilter hook sees forwarded packets: the packet needs no record.
    Free,
    /// The packet takes the stack, and is not recorded.
    Stack,
    /// The packet takes the stack, and may be recorded for those that follow.
    Asks,
    /// The packet may leave past the stack by a fresh record of its direction.
    ByRecord,
}

/// Decides about a packet with these signals; `flags` are [`Settings::flags`].
#[inline(always)]
pub const fn consent(flags: u32, protocol: Protocol, signals: Signals) -> Consent {
    if flags & Settings::UNFILTERED != 0 {
        return Consent::Free;
    }
    match protocol {
        Protocol::TCP => {
            // Connection tracking must see how a connection begins and ends.
            if flags & Settings::TCP_BY_STACK != 0 || signals.has(Signals::FIN | Signals::RST) {
                Consent::Stack
            } else if signals.has(Signals::SYN) {
                Consent::Asks
            } else {
                Consent::ByRecord
            }
        }
        Protocol::UDP => Consent::ByRecord,
        // Connection tracking follows the chunks of an association.
        _ => Consent::Stack,
    }
}

/// The path that a packet of a known flow takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Path {
    /// Through the stack.
    Stack,
    /// Through the stack, and egress records it for the packets that follow. Until then, or for
    /// this time unit, those take the stack and do not ask again: what egress cannot record would
    /// cost every packet.
    Recorded,
    /// Past the stack, if the FIB result is the interface in the flow's record.
    Past,
    /// Past the stack by any interface.
    Free,
}

/// Returns the path of a packet; [`consent`] has returned `consent` for it. `entry` is the packet's
/// flow entry, as it was before this packet; `first`: the packet begins the flow.
#[inline(always)]
pub fn path<A: Addr>(
    consent: Consent,
    protocol: Protocol,
    entry: &FlowEntry<A>,
    first: bool,
    now: u64,
) -> Path {
    let is_original = entry.kind == FlowKind::ORIGINAL;
    match consent {
        Consent::Free => return Path::Free,
        Consent::Stack => return Path::Stack,
        // A one-way stream always takes the stack.
        _ if protocol == Protocol::UDP && is_original && !entry.state.has(FlowState::ANSWERED) => {
            return Path::Stack;
        }
        Consent::Asks | Consent::ByRecord => {}
    }
    let may_follow = consent == Consent::ByRecord
        && (protocol != Protocol::TCP || !is_original || entry.state.has(FlowState::ESTABLISHED));
    let is_fresh = !first && entry.offload.is_fresh(protocol, entry.last_seen, now);
    match (is_fresh, may_follow) {
        (false, _) if entry.offload.is_asked(now) => Path::Stack,
        (false, _) => Path::Recorded,
        (true, true) => Path::Past,
        (true, false) => Path::Stack,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{V4, flow::ClientInterface};

    const UNIT: u64 = 1 << CLOCK_SHIFT;
    const TCP: Protocol = Protocol::TCP;

    #[test]
    fn a_tcp_record_is_fresh_for_nine_to_thirteen_seconds_and_udps_until_its_unit_ends() {
        let now = 700 * UNIT + UNIT / 2;
        let record = Offload::new(7, now);
        for (protocol, age, fresh) in [
            (TCP, 0, true),
            (TCP, 8_500_000_000, true),
            (TCP, 13_000_000_000, false),
            (TCP, 60_000_000_000, false),
            (Protocol::UDP, UNIT / 2 - 1, true),
            (Protocol::UDP, UNIT / 2, false),
        ] {
            let found = record.is_fresh(protocol, now + age, now + age);
            assert_eq!(found, fresh, "{protocol:?} {age}");
        }
        // Its clock has wrapped around while the flow was idle.
        assert!(!record.is_fresh(TCP, now, now + 256 * UNIT));
        assert!(!Offload::NONE.is_fresh(TCP, now, now) && !Offload::NONE.is_fresh(TCP, 0, 0));
    }

    #[test]
    fn a_record_names_one_interface() {
        for index in [1, 70_000, 0x00ff_ffff] {
            let record = Offload::new(index, 5 * UNIT);
            assert!(record.is_by(index));
            assert!(!record.is_by(index - 1));
            assert!(record.is_fresh(TCP, 5 * UNIT, 5 * UNIT));
        }
        assert!(!Offload::NONE.is_by(1));
    }

    #[test]
    fn the_stack_is_asked_once_in_a_time_unit() {
        let now = 5 * UNIT;
        let asked = Offload::asked(now);
        assert!(asked.is_asked(now + UNIT - 1) && !asked.is_asked(now + UNIT));
        assert!(!asked.is_fresh(TCP, now, now) && asked.interface() == 0);
        assert!(!Offload::NONE.is_asked(now) && !Offload::new(7, now).is_asked(now));
    }

    const SYN: Signals = Signals(Signals::SYN);
    const ACK: Signals = Signals(Signals::ACK);
    const FIN: Signals = Signals(Signals::FIN | Signals::ACK);
    const RST: Signals = Signals(Signals::RST);

    #[test]
    fn protocol_tcp_flags_and_settings_decide_if_the_stack_is_asked() {
        let udp = (Protocol::UDP, Signals::NONE);
        for (flags, (protocol, signals), consent_is) in [
            (0, (TCP, SYN), Consent::Asks),
            (0, (TCP, ACK), Consent::ByRecord),
            (0, (TCP, FIN), Consent::Stack),
            (0, (TCP, RST), Consent::Stack),
            (0, udp, Consent::ByRecord),
            (0, (Protocol::SCTP, ACK), Consent::Stack),
            (Settings::TCP_BY_STACK, (TCP, ACK), Consent::Stack),
            (Settings::TCP_BY_STACK, udp, Consent::ByRecord),
            (Settings::UNFILTERED, (TCP, RST), Consent::Free),
            (Settings::UNFILTERED, (Protocol::SCTP, SYN), Consent::Free),
        ] {
            let found = consent(flags, protocol, signals);
            assert_eq!(found, consent_is, "{flags:#x} {protocol:?} {signals:?}");
        }
    }

    #[test]
    fn a_flows_packets_follow_a_record_once_the_flow_is_established_or_answered() {
        let (there, back) = (FlowKind::ORIGINAL, FlowKind::REPLY);
        let (new, answered) = (FlowState::NEW, FlowState::ANSWERED);
        let open = FlowState::ESTABLISHED;
        let udp = (Protocol::UDP, Signals::NONE);
        let now = 5 * UNIT;
        let (fresh, none) = (Offload::new(7, now), Offload::NONE);
        let (asked, old) = (Offload::asked(now), Offload::asked(now - UNIT));
        for (packet, kind, state, record, expected) in [
            ((TCP, SYN), there, new, none, Path::Recorded),
            ((TCP, ACK), there, answered, none, Path::Recorded),
            ((TCP, ACK), there, answered, fresh, Path::Stack),
            ((TCP, ACK), there, open, fresh, Path::Past),
            ((TCP, SYN), there, open, fresh, Path::Stack),
            ((TCP, FIN), there, open, fresh, Path::Stack),
            ((TCP, ACK), back, answered, fresh, Path::Past),
            ((TCP, ACK), back, answered, none, Path::Recorded),
            (udp, there, new, none, Path::Stack),
            (udp, there, new, fresh, Path::Stack),
            (udp, there, answered, none, Path::Recorded),
            (udp, there, answered, fresh, Path::Past),
            (udp, back, new, none, Path::Recorded),
            ((TCP, ACK), there, open, asked, Path::Stack),
            ((TCP, ACK), there, open, old, Path::Recorded),
        ] {
            // SAFETY: a plain value; every bit pattern is valid.
            let mut entry = unsafe { core::mem::zeroed::<FlowEntry<V4>>() };
            entry.begin(kind, ClientInterface::SHARED, now);
            (entry.state, entry.offload) = (state, record);
            let (protocol, signals) = packet;
            let found = path(consent(0, protocol, signals), protocol, &entry, false, now);
            assert_eq!(found, expected, "{packet:?} {kind:?} {state:?} {record:?}");
        }
    }
}
