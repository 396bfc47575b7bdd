// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Counters of each backend, and of refused packets. The kernel programs on each CPU write counters
//! of their own; `portolan top` reads them.

use crate::{Counter, FlowState, Protocol, ServiceId, flow::Signals};

/// Element of the maps `traffic_v4` and `traffic_v6`: what passed to and from the backend whose id
/// is the element's index. Element 0 counts for the backends beyond the map's size, and for
/// connections that outlive their backend once its id is reused.
///
/// A packet is a packet buffer of the kernel: segments that the kernel has joined, or not cut yet,
/// are one packet, and all their bytes count. Bytes are those from the IP header on. Traffic that
/// is translated at sockets passes no program for packets: its connections are counted, its packets
/// are not.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct Traffic {
    /// The backend's generation: connections of another generation do not count here.
    pub generation: u64,
    /// Packets to the backend; the next field counts their bytes.
    pub packets_in: u64,
    pub bytes_in: u64,
    /// Packets from the backend; the next field counts their bytes.
    pub packets_out: u64,
    pub bytes_out: u64,
    /// Connections begun; for UDP, conversations.
    pub connections: u64,
    /// How many of `connections` got their backend by session affinity.
    pub affinity_hits: u64,
    /// SYNs to which no answer was seen before the client repeated them.
    pub unanswered: u64,
    /// SYNs that a client sent again.
    pub retransmitted: u64,
}

impl Traffic {
    /// Adds the numbers of another element.
    pub const fn add(&mut self, other: &Self) {
        self.packets_in += other.packets_in;
        self.bytes_in += other.bytes_in;
        self.packets_out += other.packets_out;
        self.bytes_out += other.bytes_out;
        self.connections += other.connections;
        self.affinity_hits += other.affinity_hits;
        self.unanswered += other.unanswered;
        self.retransmitted += other.retransmitted;
    }
}

/// Events of a connection, as bits.
pub mod event {
    /// The connection begins.
    pub const BEGUN: u32 = 1;
    /// The connection's backend was chosen by session affinity.
    pub const HELD: u32 = 1 << 1;
    /// The client has sent its SYN again.
    pub const RETRANSMITTED: u32 = 1 << 2;
    /// The previous SYN had no answer.
    pub const UNANSWERED: u32 = 1 << 3;
}

/// Returns the bits of [`event`] for a client's packet of a known flow: whether it repeats a SYN,
/// and whether the previous SYN had no answer. `repeats`: see [`crate::flow::change_by_client`].
#[inline(always)]
pub fn repetition(
    protocol: Protocol,
    signals: Signals,
    state: FlowState,
    repeats: impl FnOnce() -> bool,
) -> u32 {
    if !signals.begins()
        || protocol.0 == Protocol::UDP.0
        || state.has(FlowState::ACKNOWLEDGED)
        || state.is_closing()
    {
        0
    } else if state.has(FlowState::ANSWERED) {
        event::RETRANSMITTED
    } else if repeats() {
        event::RETRANSMITTED | event::UNANSWERED
    } else {
        0
    }
}

/// Key of the map `refused`: a service port, and why its packets were not served. The value is the
/// number of these packets.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(C)]
pub struct RefusedKey {
    /// [`ServiceId::NONE`] where no service port is known, and where the map is full.
    pub service: ServiceId,
    /// Why: index of a [`Counter`].
    pub counter: u32,
}

impl RefusedKey {
    /// Returns the key for packets that belong to no service port in particular.
    #[must_use]
    pub const fn of_none(counter: Counter) -> Self {
        Self {
            service: ServiceId::NONE,
            counter: counter as u32,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repeated_syn_counts_until_the_connection_is_established_or_over() {
        let syn = Signals(Signals::SYN);
        let repeated = event::RETRANSMITTED;
        let another = repetition(Protocol::TCP, syn, FlowState::NEW, || false);
        assert_eq!(another, 0, "a port that comes again");
        for (state, expected) in [
            (FlowState::NEW, repeated | event::UNANSWERED),
            (FlowState::REPEATED, repeated | event::UNANSWERED),
            (FlowState::ANSWERED, repeated),
            (FlowState::ESTABLISHED, 0),
            (FlowState::RESET, 0),
        ] {
            let repeated = |protocol, signals| repetition(protocol, signals, state, || true);
            assert_eq!(repeated(Protocol::TCP, syn), expected, "{state:?}");
            assert_eq!(repeated(Protocol::UDP, syn), 0);
            assert_eq!(repeated(Protocol::TCP, Signals(Signals::ACK)), 0);
        }
    }

    #[test]
    fn only_drops_and_rejections_are_refusals() {
        for counter in Counter::ALL {
            let name = counter.name();
            let expected = name.starts_with("rejected")
                || name.starts_with("dropped")
                || *counter == Counter::IcmpRedirectDropped;
            assert_eq!(counter.refuses(), expected, "{name}");
        }
    }
}
