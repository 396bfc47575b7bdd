// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The life of a flow: its state, and how a packet changes it. Called for every packet of a flow by
//! the kernel programs.

use super::Signals;
use crate::Protocol;

/// The state of a flow: what has been seen of it, one bit each. Programs on several CPUs set bits
/// by atomic instructions, so two simultaneous packets lose no bit.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct FlowState(pub u32);

/// The phase of a flow's life. TCP's closing phases are a simplification of nf_conntrack's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// Only packets from the client have been seen.
    Unanswered,
    /// The backend has answered.
    Answered,
    /// The client has acknowledged the answer.
    Established,
    /// TCP: the client has sent FIN.
    ClosingByClient,
    /// TCP: the backend has sent FIN.
    ClosingByBackend,
    /// TCP: both have sent FIN, or one RST. SCTP: SHUTDOWN COMPLETE or ABORT.
    Closed,
}

impl FlowState {
    /// Only the client's first packet has been seen.
    pub const NEW: Self = Self(0);
    /// The backend has answered: TCP with SYN+ACK, SCTP with INIT ACK, UDP with any datagram.
    pub const ANSWERED: Self = Self(1);
    /// The client has proven that it received the answer: see [`super::proves_answer`].
    pub const ACKNOWLEDGED: Self = Self(1 << 1);
    pub const CLIENT_FIN: Self = Self(1 << 2);
    pub const BACKEND_FIN: Self = Self(1 << 3);
    /// The backend sent its FIN first, so it keeps the tuple in TIME_WAIT.
    pub const BACKEND_FIRST: Self = Self(1 << 4);
    /// One side has sent RST, ABORT or SHUTDOWN COMPLETE.
    pub const RESET: Self = Self(1 << 5);
    /// The client has repeated its SYN (the same SYN), because no answer came.
    pub const REPEATED: Self = Self(1 << 6);
    /// The client has sent a SYN although the connection is established: it may have lost its
    /// state.
    pub const RENEWED: Self = Self(1 << 7);
    /// The flow began in the middle of a connection, and nothing has proven yet that its two ends
    /// know this connection.
    pub const PICKED_UP: Self = Self(1 << 8);
    /// TCP: after one side's FIN the other side has sent a segment, so it is still there.
    pub const FIN_ANSWERED: Self = Self(1 << 9);
    /// TCP: the backend has sent data, and the client nothing since.
    pub const DATA_SENT: Self = Self(1 << 10);

    /// The flow is answered and acknowledged, and has no other bit.
    pub const ESTABLISHED: Self = Self(Self::ANSWERED.0 | Self::ACKNOWLEDGED.0);
    const BOTH_FIN: u32 = Self::CLIENT_FIN.0 | Self::BACKEND_FIN.0;

    #[inline(always)]
    pub const fn has(self, bits: Self) -> bool {
        self.0 & bits.0 == bits.0
    }
    #[must_use]
    #[inline(always)]
    pub const fn with(self, bits: Self) -> Self {
        Self(self.0 | bits.0)
    }
    /// Whether the flow has ended: both sides have closed, or one has reset.
    #[inline(always)]
    pub const fn is_closed(self) -> bool {
        self.0 & Self::RESET.0 != 0 || self.0 & Self::BOTH_FIN == Self::BOTH_FIN
    }
    /// Whether one side has closed or reset the connection: a new SYN (or INIT) begins another
    /// flow.
    #[inline(always)]
    pub const fn is_closing(self) -> bool {
        self.0 & (Self::BOTH_FIN | Self::RESET.0) != 0
    }
    /// Whether one side has closed the connection, and the other side has been silent since.
    #[inline(always)]
    pub const fn awaits_answer_to_fin(self) -> bool {
        self.0 & Self::BOTH_FIN != 0 && self.0 & Self::FIN_ANSWERED.0 == 0
    }
    /// Whether the flow may be evicted at any time when another flow needs its space: it is not
    /// acknowledged yet, or has ended, as far as the side that still sends is concerned.
    #[inline(always)]
    pub const fn gives_way(self) -> bool {
        self.0 & Self::ACKNOWLEDGED.0 == 0 || self.is_closed() || self.awaits_answer_to_fin()
    }
    pub const fn phase(self) -> Phase {
        if self.is_closed() {
            Phase::Closed
        } else if self.0 & Self::CLIENT_FIN.0 != 0 {
            Phase::ClosingByClient
        } else if self.0 & Self::BACKEND_FIN.0 != 0 {
            Phase::ClosingByBackend
        } else if self.0 & Self::ACKNOWLEDGED.0 != 0 {
            Phase::Established
        } else if self.0 & Self::ANSWERED.0 != 0 {
            Phase::Answered
        } else {
            Phase::Unanswered
        }
    }
    /// The state as `portolan flows` prints it.
    pub const fn name(self) -> &'static str {
        match self.phase() {
            Phase::Unanswered => "unanswered",
            Phase::Answered => "answered",
            Phase::Established => "established",
            Phase::ClosingByClient => "closing-by-client",
            Phase::ClosingByBackend => "closing-by-backend",
            Phase::Closed => "closed",
        }
    }
}

/// What a packet does to the state of its flow: bits to set, and bits to clear.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Change {
    pub set: FlowState,
    pub clear: FlowState,
}

impl Change {
    pub const NONE: Self = Self {
        set: FlowState::NEW,
        clear: FlowState::NEW,
    };
    const fn set(bits: FlowState) -> Self {
        Self {
            set: bits,
            ..Self::NONE
        }
    }
    const fn clear(bits: FlowState) -> Self {
        Self {
            clear: bits,
            ..Self::NONE
        }
    }
    #[inline(always)]
    const fn when(self, is: bool) -> Self {
        if is { self } else { Self::NONE }
    }
    #[inline(always)]
    const fn and(self, other: Self) -> Self {
        Self {
            set: self.set.with(other.set),
            clear: self.clear.with(other.clear),
        }
    }
    /// Returns `state` after this change.
    #[inline(always)]
    pub const fn of(self, state: FlowState) -> FlowState {
        FlowState((state.0 | self.set.0) & !self.clear.0)
    }
}

/// The change that a packet with `signals` of the original direction makes. `proven` returns
/// whether an acknowledging packet has the right number (TCP: [`super::proves_answer`], or
/// [`super::is_near`] where the flow is picked up). `expected` returns whether a packet that ends
/// an established connection comes from its client. `repeats` returns whether a SYN equals the
/// previous one, by its sequence number or SCTP's tag: a SYN with another number is a new
/// connection that reuses the client's port. Each is called only while its answer matters.
#[inline(always)]
pub fn change_by_client(
    state: FlowState,
    protocol: Protocol,
    signals: Signals,
    repeats: impl FnOnce() -> bool,
    proven: impl FnOnce() -> bool,
    expected: impl FnOnce() -> bool,
) -> Change {
    const CLIENT_SIGNALS: u8 = Signals::RST | Signals::FIN | Signals::SYN;
    if state == FlowState::ESTABLISHED && !signals.has(CLIENT_SIGNALS) {
        return Change::NONE;
    }
    if let Some(end) = end_by_client(signals) {
        let believed = state.has(end) || !state.has(FlowState::ACKNOWLEDGED) || expected();
        let mut change = Change::set(end).when(believed);
        // The first acknowledgement may come with the FIN.
        if believed && !signals.has(Signals::RST) {
            change = change.and(acknowledgement(state, protocol, signals, proven));
        }
        return change;
    }
    if signals.begins() && protocol.0 != Protocol::UDP.0 {
        return if state.has(FlowState::ACKNOWLEDGED) {
            Change::set(FlowState::RENEWED)
        } else if state.has(FlowState::ANSWERED) {
            Change::NONE
        } else if repeats() {
            Change::set(FlowState::REPEATED)
        } else {
            Change::clear(FlowState::REPEATED)
        };
    }
    going_on(state, signals)
        .and(answer_to_fin(state, FlowState::BACKEND_FIN, signals))
        .and(acknowledgement(state, protocol, signals, proven))
        .and(receipt(state, signals))
}

/// Returns the change by a segment that shows its sender to be there after the other side's FIN.
#[inline(always)]
const fn answer_to_fin(state: FlowState, fin: FlowState, signals: Signals) -> Change {
    let answers = state.has(fin) && state.awaits_answer_to_fin() && signals.goes_on();
    Change::set(FlowState::FIN_ANSWERED).when(answers)
}

/// Returns the change by a client's segment that shows the client to be there after data.
#[inline(always)]
const fn receipt(state: FlowState, signals: Signals) -> Change {
    let receives = state.has(FlowState::DATA_SENT) && signals.goes_on();
    Change::clear(FlowState::DATA_SENT).when(receives)
}

#[inline(always)]
const fn end_by_client(signals: Signals) -> Option<FlowState> {
    if signals.has(Signals::RST) {
        Some(FlowState::RESET)
    } else if signals.has(Signals::FIN) {
        Some(FlowState::CLIENT_FIN)
    } else {
        None
    }
}

/// Returns the change by a packet of an open connection: it shows that an earlier RST or SYN was
/// forged, so RESET and RENEWED are cleared.
#[inline(always)]
fn going_on(state: FlowState, signals: Signals) -> Change {
    const DOUBTS: u32 = FlowState::RESET.0 | FlowState::RENEWED.0;
    Change::clear(FlowState(DOUBTS)).when(state.0 & DOUBTS != 0 && signals.goes_on())
}

/// Returns the change by a client's packet that may acknowledge the backend's answer.
#[inline(always)]
fn acknowledgement(
    state: FlowState,
    protocol: Protocol,
    signals: Signals,
    proven: impl FnOnce() -> bool,
) -> Change {
    let is_open = state.has(FlowState::ANSWERED) && !state.has(FlowState::ACKNOWLEDGED);
    let change = Change {
        set: FlowState::ACKNOWLEDGED,
        clear: FlowState::REPEATED.with(FlowState::PICKED_UP),
    };
    let is_udp = protocol.0 == Protocol::UDP.0;
    change.when(is_open && (is_udp || signals.acknowledges() && proven()))
}

/// The change that a reply with `signals` makes. `expected` returns whether a packet that ends an
/// established connection comes from its backend. `carries_data` is called only while its answer
/// matters.
#[inline(always)]
pub fn change_by_backend(
    state: FlowState,
    protocol: Protocol,
    signals: Signals,
    expected: impl FnOnce() -> bool,
    carries_data: impl FnOnce() -> bool,
) -> Change {
    let believed = |end| state.has(end) || !state.has(FlowState::ACKNOWLEDGED) || expected();
    if signals.has(Signals::RST) {
        return Change::set(FlowState::RESET).when(believed(FlowState::RESET));
    }
    if signals.has(Signals::FIN) {
        let first = if state.has(FlowState::CLIENT_FIN) {
            FlowState::NEW
        } else {
            FlowState::BACKEND_FIRST
        };
        let change = Change::set(FlowState::BACKEND_FIN.with(first));
        return change.when(believed(FlowState::BACKEND_FIN));
    }
    if takes_answer(state, signals) {
        return Change {
            set: FlowState::ANSWERED,
            clear: FlowState::RENEWED,
        };
    }
    // A lone ACK is no answer: a backend in TIME_WAIT sends one to a SYN that it does not accept.
    if state.has(FlowState::ANSWERED) || protocol.0 != Protocol::UDP.0 {
        let waits = state == FlowState::ESTABLISHED && protocol.0 == Protocol::TCP.0;
        if waits && signals.goes_on() && carries_data() {
            return Change::set(FlowState::DATA_SENT);
        }
        return going_on(state, signals).and(answer_to_fin(state, FlowState::CLIENT_FIN, signals));
    }
    Change::set(FlowState::ANSWERED)
}

/// Whether a reply with `signals` is the answer that the client is waiting for; the reply's numbers
/// are valid from now on. For a flow that was picked up mid-stream, this is the first reply that
/// continues the connection: a backend that does not know the connection sends RST.
#[inline(always)]
pub const fn takes_answer(state: FlowState, signals: Signals) -> bool {
    let waits = !state.has(FlowState::ACKNOWLEDGED) || state.has(FlowState::RENEWED);
    let goes_on =
        state.has(FlowState::PICKED_UP) && !state.has(FlowState::ANSWERED) && signals.goes_on();
    signals.answers() && waits || goes_on
}

/// Whether a packet that belongs to no known flow may be the first packet of a flow.
#[inline(always)]
pub fn may_begin(protocol: Protocol, signals: Signals) -> bool {
    protocol == Protocol::UDP || signals.begins()
}

/// Why a client's packet on a known flow begins another flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Anew {
    /// The packet belongs to the known flow.
    No,
    /// The flow has ended, or its backend no longer serves.
    Ended,
    /// The flow's backend does not answer: the new flow tries another one.
    Unanswered,
}

/// Whether a client's packet on a known flow begins another flow. A SYN does so if the flow is
/// closing or picked up, or if it is the second repetition without an answer. A SYN or datagram
/// does so if the flow's backend no longer serves. TCP and SCTP keep their backend otherwise. An
/// established connection keeps its backend even when that no longer serves, unless the SYN is
/// `genuine`: it is from the connection's client, or comes when the connection has been silent for
/// long. `genuine`, `serves` and `repeats` (see [`change_by_client`]) are called for datagrams and
/// SYNs only.
#[inline(always)]
pub fn begins_anew(
    protocol: Protocol,
    signals: Signals,
    state: FlowState,
    repeats: impl FnOnce() -> bool,
    genuine: impl FnOnce() -> bool,
    serves: impl FnOnce() -> bool,
) -> Anew {
    if !may_begin(protocol, signals) {
        return Anew::No;
    }
    let is_datagram = protocol.0 == Protocol::UDP.0;
    if !is_datagram {
        if state.is_closing() || state.has(FlowState::PICKED_UP) {
            return Anew::Ended;
        }
        if state.has(FlowState::ACKNOWLEDGED) && !genuine() {
            return Anew::No;
        }
    }
    if !serves() {
        return Anew::Ended;
    }
    let waits = state.has(FlowState::REPEATED) && !state.has(FlowState::ANSWERED);
    if !is_datagram && waits && repeats() {
        return Anew::Unanswered;
    }
    Anew::No
}

#[cfg(test)]
mod tests;
