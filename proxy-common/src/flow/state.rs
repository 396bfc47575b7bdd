// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The life of a flow: its state, and how a packet changes it. Called for every packet of a flow by the kernel programs.

use crate::Protocol;

/// The state of a flow: what has been seen of it, one bit each. Programs on several CPUs set bits by atomic instructions,
/// so two packets at the same moment lose nothing.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct FlowState(pub u32);

/// How far a flow has come. TCP's closing phases are a simplification of nf_conntrack's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// Packets of the original direction only.
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
    /// Nothing but the client's first packet.
    pub const NEW: Self = Self(0);
    /// The backend has answered: TCP with SYN+ACK, others with anything.
    pub const ANSWERED: Self = Self(1);
    /// The client has proven that it received the answer: see [`proves_answer`].
    pub const ACKNOWLEDGED: Self = Self(1 << 1);
    pub const CLIENT_FIN: Self = Self(1 << 2);
    pub const BACKEND_FIN: Self = Self(1 << 3);
    /// The backend sent its FIN first, so it keeps the tuple in TIME_WAIT.
    pub const BACKEND_FIRST: Self = Self(1 << 4);
    /// RST, ABORT or SHUTDOWN COMPLETE.
    pub const RESET: Self = Self(1 << 5);
    /// The client has repeated its SYN without an answer.
    pub const REPEATED: Self = Self(1 << 6);

    /// Answered and acknowledged, nothing else.
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
    /// Over: both sides have closed, or one has reset.
    #[inline(always)]
    pub const fn is_closed(self) -> bool {
        self.0 & Self::RESET.0 != 0 || self.0 & Self::BOTH_FIN == Self::BOTH_FIN
    }
    /// Whether a new SYN (or INIT) on this flow begins another one.
    #[inline(always)]
    pub const fn is_closing(self) -> bool {
        self.0 & (Self::BOTH_FIN | Self::RESET.0) != 0
    }
    /// Whether the flow may be removed at any time when another needs its room: not acknowledged yet, or over.
    #[inline(always)]
    pub const fn gives_way(self) -> bool {
        self.0 & Self::ACKNOWLEDGED.0 == 0 || self.is_closed()
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
    /// As `portolan flows` prints it.
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
    /// ACK without SYN: the sender says that it has received the answer to its SYN. A repeated SYN says nothing.
    #[inline(always)]
    pub const fn acknowledges(self) -> bool {
        self.0 & (Self::SYN | Self::ACK) == Self::ACK
    }
    /// SYN+ACK: the answer to a SYN.
    #[inline(always)]
    pub const fn answers(self) -> bool {
        self.0 & (Self::SYN | Self::ACK | Self::RST) == Self::SYN | Self::ACK
    }
    /// Data, or a bare acknowledgement, of an open connection.
    #[inline(always)]
    pub const fn goes_on(self) -> bool {
        self.0 & (Self::SYN | Self::ACK | Self::RST | Self::FIN) == Self::ACK
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

/// What a packet does to the state of its flow: bits to set, and bits to clear.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Change {
    pub set: FlowState,
    pub clear: FlowState,
}

impl Change {
    const NONE: Self = Self {
        set: FlowState::NEW,
        clear: FlowState::NEW,
    };
    const fn set(bits: FlowState) -> Self {
        Self {
            set: bits,
            ..Self::NONE
        }
    }
    /// The state after this change.
    #[inline(always)]
    pub const fn of(self, state: FlowState) -> FlowState {
        FlowState((state.0 | self.set.0) & !self.clear.0)
    }
}

/// Whether a segment's acknowledgement number proves that its sender has received the backend's SYN+ACK. `next` is the sequence
/// number that follows that SYN. Data that a backend sends at once (TCP fast open) may be acknowledged along with it; a guess
/// succeeds once in 65 536 times.
#[inline(always)]
pub const fn proves_answer(acknowledgement: u32, next: u32) -> bool {
    acknowledgement.wrapping_sub(next) < 1 << 16
}

/// What a packet with `signals` of the original direction does. `proven` says whether a TCP segment that acknowledges has the
/// right number (see [`proves_answer`]); it is asked only while that is open.
#[inline(always)]
pub fn change_by_client(
    state: FlowState,
    protocol: Protocol,
    signals: Signals,
    proven: impl FnOnce() -> bool,
) -> Change {
    const CLIENT_SIGNALS: u8 = Signals::RST | Signals::FIN | Signals::SYN;
    if state == FlowState::ESTABLISHED && !signals.has(CLIENT_SIGNALS) {
        return Change::NONE;
    }
    if signals.has(Signals::RST) {
        return Change::set(FlowState::RESET);
    }
    let is_tcp = protocol.0 == Protocol::TCP.0;
    let mut change = Change::NONE;
    if signals.begins() && protocol.0 != Protocol::UDP.0 {
        if !state.has(FlowState::ANSWERED) {
            change.set = FlowState::REPEATED;
        }
        return change;
    }
    // A forged reset would otherwise end a connection here that goes on elsewhere.
    if is_tcp && state.has(FlowState::RESET) && signals.goes_on() {
        change.clear = FlowState::RESET;
    }
    if is_tcp && signals.has(Signals::FIN) {
        change.set = FlowState::CLIENT_FIN;
    }
    if state.has(FlowState::ANSWERED)
        && !state.has(FlowState::ACKNOWLEDGED)
        && acknowledges(protocol, signals, proven)
    {
        change.set = change.set.with(FlowState::ACKNOWLEDGED);
        change.clear = change.clear.with(FlowState::REPEATED);
    }
    change
}

#[inline(always)]
fn acknowledges(protocol: Protocol, signals: Signals, proven: impl FnOnce() -> bool) -> bool {
    match protocol {
        Protocol::UDP => true,
        Protocol::TCP => signals.acknowledges() && proven(),
        _ => signals.acknowledges(),
    }
}

/// What a reply with `signals` does.
#[inline(always)]
pub fn change_by_backend(state: FlowState, protocol: Protocol, signals: Signals) -> Change {
    if signals.has(Signals::RST) {
        return Change::set(FlowState::RESET);
    }
    let is_tcp = protocol.0 == Protocol::TCP.0;
    if is_tcp && signals.has(Signals::FIN) {
        let first = if state.has(FlowState::CLIENT_FIN) {
            FlowState::NEW
        } else {
            FlowState::BACKEND_FIRST
        };
        return Change::set(FlowState::BACKEND_FIN.with(first));
    }
    // A lone ACK is no answer: a backend in TIME_WAIT sends one to a SYN that it does not take.
    if state.has(FlowState::ANSWERED) || is_tcp && !signals.answers() {
        return Change::NONE;
    }
    Change::set(FlowState::ANSWERED)
}

/// Whether a packet that belongs to no known flow may be the first of one.
#[inline(always)]
pub fn may_begin(protocol: Protocol, signals: Signals) -> bool {
    protocol == Protocol::UDP || signals.begins()
}

/// Why a client's packet on a known flow begins another flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Anew {
    /// It does not.
    No,
    /// The flow is over, or its backend no longer serves.
    Ended,
    /// The backend does not answer: try another one.
    Unanswered,
}

/// Whether a client's packet on a known flow begins another flow: a SYN on one that is closing, whose backend no longer
/// serves, or at the second repetition without an answer; a datagram whose backend no longer serves. TCP and SCTP keep their
/// backend otherwise. `serves` is asked for datagrams and SYNs only.
#[inline(always)]
pub fn begins_anew(
    protocol: Protocol,
    signals: Signals,
    state: FlowState,
    serves: impl FnOnce() -> bool,
) -> Anew {
    let may_begin = may_begin(protocol, signals);
    if !may_begin {
        Anew::No
    } else if protocol != Protocol::UDP && state.is_closing() || !serves() {
        Anew::Ended
    } else if protocol != Protocol::UDP
        && state.has(FlowState::REPEATED)
        && !state.has(FlowState::ANSWERED)
    {
        Anew::Unanswered
    } else {
        Anew::No
    }
}

#[cfg(test)]
mod tests;
