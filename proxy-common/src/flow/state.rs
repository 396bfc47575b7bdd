// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The life of a flow: its state, and how a packet changes it. Called for every packet of a flow by the kernel programs.

use crate::Protocol;

/// The state of a flow. TCP's closing states are a simplification of nf_conntrack's.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct FlowState(pub u32);

impl FlowState {
    /// Packets of the original direction only.
    pub const UNANSWERED: Self = Self(0);
    /// The backend has answered: UDP once, SCTP once, TCP with SYN+ACK.
    pub const ANSWERED: Self = Self(1);
    /// The client has acknowledged the answer: TCP and SCTP by anything but another SYN or INIT, UDP by its next
    /// datagram.
    pub const ESTABLISHED: Self = Self(2);
    /// TCP: the client has sent FIN.
    pub const CLOSING_BY_CLIENT: Self = Self(3);
    /// TCP: the backend has sent FIN.
    pub const CLOSING_BY_BACKEND: Self = Self(4);
    /// TCP: both have sent FIN, or one RST. SCTP: SHUTDOWN COMPLETE or ABORT.
    pub const CLOSED: Self = Self(5);

    /// Whether a new SYN (or INIT) on this flow begins another one.
    #[inline(always)]
    pub const fn is_closing(self) -> bool {
        self.0 >= Self::CLOSING_BY_CLIENT.0
    }
    /// As `portolan flows` prints it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::UNANSWERED => "unanswered",
            Self::ANSWERED => "answered",
            Self::ESTABLISHED => "established",
            Self::CLOSING_BY_CLIENT => "closing-by-client",
            Self::CLOSING_BY_BACKEND => "closing-by-backend",
            Self::CLOSED => "closed",
            _ => "?",
        }
    }
}

impl core::fmt::Debug for FlowState {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.name())
    }
}

/// A packet's signals about the state of its flow: TCP flags, or the SCTP chunk that means the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(transparent)]
pub struct Signals(pub u8);

impl Signals {
    /// TCP's own bit positions.
    pub const FIN: u8 = 0x01;
    pub const SYN: u8 = 0x02;
    pub const RST: u8 = 0x04;
    pub const ACK: u8 = 0x10;
    pub const NONE: Self = Self(0);

    #[inline(always)]
    pub const fn has(self, flag: u8) -> bool {
        self.0 & flag != 0
    }
    /// SYN without ACK or RST: a connection begins. SYN+ACK is no SYN.
    #[inline(always)]
    pub const fn begins(self) -> bool {
        self.0 & (Self::SYN | Self::ACK | Self::RST) == Self::SYN
    }
    /// ACK without SYN: the sender has received the answer to its SYN. A repeated SYN proves nothing.
    #[inline(always)]
    pub const fn acknowledges(self) -> bool {
        self.0 & (Self::SYN | Self::ACK) == Self::ACK
    }
    /// From the type of an SCTP packet's first chunk (RFC 9260, 3.2).
    #[inline(always)]
    pub const fn from_sctp_chunk(chunk: u8) -> Self {
        match chunk {
            1 => Self(Self::SYN),
            6 | 14 => Self(Self::RST),
            _ => Self(Self::ACK),
        }
    }
}

/// The state after a packet with `signals` of the given direction.
#[inline(always)]
pub const fn next_state(
    state: FlowState,
    reply: bool,
    protocol: Protocol,
    signals: Signals,
) -> FlowState {
    if signals.has(Signals::RST) {
        return FlowState::CLOSED;
    }
    if protocol.0 == Protocol::TCP.0 && signals.has(Signals::FIN) {
        return match (state, reply) {
            (FlowState::CLOSING_BY_BACKEND, false) | (FlowState::CLOSING_BY_CLIENT, true) => {
                FlowState::CLOSED
            }
            (FlowState::CLOSED, _) => FlowState::CLOSED,
            (_, false) => FlowState::CLOSING_BY_CLIENT,
            (_, true) => FlowState::CLOSING_BY_BACKEND,
        };
    }
    match (state, reply) {
        (FlowState::UNANSWERED, true) => FlowState::ANSWERED,
        (FlowState::ANSWERED, false) if protocol.0 == Protocol::UDP.0 || signals.acknowledges() => {
            FlowState::ESTABLISHED
        }
        _ => state,
    }
}

/// Whether a packet that belongs to no known flow may be the first of one.
#[inline(always)]
pub fn may_begin(protocol: Protocol, signals: Signals) -> bool {
    protocol == Protocol::UDP || signals.begins()
}

/// Whether a client's packet on a known flow begins another flow: a SYN on one that is closing, or a datagram
/// whose backend no longer serves. TCP and SCTP keep their backend until they end. `serves` is asked for UDP only.
#[inline(always)]
pub fn begins_anew(
    protocol: Protocol,
    signals: Signals,
    state: FlowState,
    serves: impl FnOnce() -> bool,
) -> bool {
    if protocol == Protocol::UDP {
        !serves()
    } else {
        signals.begins() && state.is_closing()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SYN: Signals = Signals(Signals::SYN);
    const ACK: Signals = Signals(Signals::ACK);
    const SYN_ACK: Signals = Signals(Signals::SYN | Signals::ACK);

    /// The state after these packets, each with whether it is a reply.
    fn after(protocol: Protocol, packets: &[(bool, Signals)]) -> FlowState {
        packets
            .iter()
            .fold(FlowState::UNANSWERED, |state, (reply, signals)| {
                next_state(state, *reply, protocol, *signals)
            })
    }

    #[test]
    fn a_connection_is_established_by_the_clients_acknowledgement() {
        for protocol in [Protocol::TCP, Protocol::SCTP] {
            let answered = [(false, SYN), (true, SYN_ACK)];
            assert_eq!(after(protocol, &answered), FlowState::ANSWERED);
            let acknowledged = [(false, SYN), (true, SYN_ACK), (false, ACK)];
            assert_eq!(after(protocol, &acknowledged), FlowState::ESTABLISHED);
        }
    }

    #[test]
    fn a_repeated_syn_establishes_nothing() {
        for protocol in [Protocol::TCP, Protocol::SCTP] {
            let repeated = [
                (false, SYN),
                (true, SYN_ACK),
                (false, SYN),
                (true, SYN_ACK),
                (false, SYN),
            ];
            assert_eq!(after(protocol, &repeated), FlowState::ANSWERED);
        }
        let forged = [(false, SYN), (true, SYN_ACK), (false, SYN_ACK)];
        assert_eq!(after(Protocol::TCP, &forged), FlowState::ANSWERED);
    }

    #[test]
    fn a_conversation_of_datagrams_is_established_by_the_second_question() {
        let packets = [(false, Signals::NONE), (true, Signals::NONE)];
        assert_eq!(after(Protocol::UDP, &packets), FlowState::ANSWERED);
        let packets = [packets[0], packets[1], packets[0]];
        assert_eq!(after(Protocol::UDP, &packets), FlowState::ESTABLISHED);
    }

    #[test]
    fn only_a_syn_an_init_or_a_datagram_may_begin_a_flow() {
        for protocol in [Protocol::TCP, Protocol::SCTP] {
            assert!(may_begin(protocol, SYN));
            for signals in [ACK, SYN_ACK, Signals(Signals::SYN | Signals::RST)] {
                assert!(!may_begin(protocol, signals));
            }
        }
        assert!(may_begin(Protocol::UDP, Signals::NONE));
    }

    #[test]
    fn a_syn_on_a_closing_connection_begins_another_and_no_other_segment_does() {
        let anew = |signals, state| begins_anew(Protocol::TCP, signals, state, || false);
        for state in [
            FlowState::CLOSING_BY_CLIENT,
            FlowState::CLOSING_BY_BACKEND,
            FlowState::CLOSED,
        ] {
            assert!(anew(SYN, state));
            assert!(!anew(ACK, state));
        }
        for state in [
            FlowState::UNANSWERED,
            FlowState::ANSWERED,
            FlowState::ESTABLISHED,
        ] {
            assert!(!anew(SYN, state), "{state:?}");
        }
    }

    #[test]
    fn a_datagram_begins_anew_when_its_backend_no_longer_serves() {
        let anew =
            |serves| begins_anew(Protocol::UDP, Signals::NONE, FlowState::ANSWERED, || serves);
        assert!(anew(false));
        assert!(!anew(true));
    }
}
