// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Flows: keys, values and life cycle. One entry per direction, a third when masqueraded.
//!
//! For a client C, frontend V, backend B and masquerade address N the entries are
//! original (C to V), reply (B to C) and masqueraded reply (B to N).

use core::mem::offset_of;

use crate::{Addr, BackendId, Port, Protocol, ServiceId, layout};

const SECOND: u64 = 1_000_000_000;

/// A packet's 5-tuple as it is seen where the lookup happens.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(C)]
pub struct FlowKey<A> {
    pub src: A,
    pub dst: A,
    pub src_port: Port,
    pub dst_port: Port,
    pub protocol: Protocol,
    pub _pad: [u8; 3],
}

impl<A: Addr> FlowKey<A> {
    #[inline(always)]
    pub const fn new(src: A, src_port: Port, dst: A, dst_port: Port, protocol: Protocol) -> Self {
        Self {
            src,
            dst,
            src_port,
            dst_port,
            protocol,
            _pad: [0; 3],
        }
    }
    /// Fills the key in place, field by field: the kernel programs' stack has no room for copies.
    #[inline(always)]
    pub fn assign(&mut self, src: &A, src_port: Port, dst: &A, dst_port: Port, protocol: Protocol) {
        self.src = *src;
        self.dst = *dst;
        self.set_protocol(protocol);
        self.set_ports(src_port, dst_port);
    }
    /// Stores both ports as one word: a look-up reads them so, and would wait for two stores to settle.
    #[inline(always)]
    pub fn set_ports(&mut self, src: Port, dst: Port) {
        // SAFETY: two ports make a word, which follows addresses.
        unsafe { self.store_word(offset_of!(Self, src_port), layout::join(src.0, dst.0)) };
    }
    /// The same for the protocol and the padding behind it.
    #[inline(always)]
    pub fn set_protocol(&mut self, protocol: Protocol) {
        let word = u32::from_ne_bytes([protocol.0, 0, 0, 0]);
        // SAFETY: protocol and padding make a word, which follows two ports.
        unsafe { self.store_word(offset_of!(Self, protocol), word) };
    }
    /// # Safety
    /// A word of whole fields must lie at `offset`, a multiple of four as the key's alignment is.
    #[inline(always)]
    unsafe fn store_word(&mut self, offset: usize, word: u32) {
        // SAFETY: the caller's promise.
        unsafe { (&raw mut *self).byte_add(offset).cast::<u32>().write(word) };
    }
    /// Makes this the tuple of `key`'s packets in the other direction.
    #[inline(always)]
    pub fn assign_reversed(&mut self, key: &Self) {
        self.assign(&key.dst, key.dst_port, &key.src, key.src_port, key.protocol);
    }
    /// The tuple of packets in the other direction.
    #[inline(always)]
    #[must_use]
    pub const fn reversed(&self) -> Self {
        Self::new(
            self.dst,
            self.dst_port,
            self.src,
            self.src_port,
            self.protocol,
        )
    }
    /// Spreads flows: the same for every packet of one, on every node.
    #[inline(always)]
    pub fn hash(&self) -> u32 {
        let ports = (self.src_port.0 as u32) << 16 | self.dst_port.0 as u32;
        layout::fold_check(
            self.src
                .mix(self.dst, 0x6c62_272e)
                .wrapping_add(layout::mix(ports, self.protocol.0 as u32, 0x07bb_0142)),
        )
    }
}

/// What an entry's packets are.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct FlowKind(pub u8);

impl FlowKind {
    /// Client to frontend; `address`, `port` are the backend's. Owns state and last seen.
    pub const ORIGINAL: Self = Self(1);
    /// Backend to client; `address`, `port` are the frontend's.
    pub const REPLY: Self = Self(2);
    /// Backend to masquerade address; `address`, `port` are the client's.
    pub const MASQUERADED_REPLY: Self = Self(3);
    /// Answers to what a node process sent from a served node port: not ours, left alone.
    pub const UNTOUCHED: Self = Self(4);

    /// As the flows table prints it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ORIGINAL => "original",
            Self::REPLY => "reply",
            Self::MASQUERADED_REPLY => "masqueraded-reply",
            Self::UNTOUCHED => "untouched",
            _ => "?",
        }
    }
}

impl core::fmt::Debug for FlowKind {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.name())
    }
}

/// A flow entry. All but `last_seen` and `state` is fixed at creation and covered by `check`: a reader
/// copies it and treats a mismatch as a miss, for the kernel recycles elements under its readers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct FlowEntry<A> {
    pub check: u32,
    pub kind: FlowKind,
    pub flags: u8,
    /// Rewritten to this port,
    pub port: Port,
    /// and this address: see [`FlowKind`].
    pub address: A,
    /// Reply: the masquerade address once a packet has left with it, else unspecified.
    pub masquerade: A,
    /// Original: source port towards the backend. Reply: the port the client knows as its own.
    pub client_port: Port,
    /// Reply: the masquerade port.
    pub masquerade_port: Port,
    pub service: ServiceId,
    pub backend: BackendId,
    pub generation: u32,
    /// Original: when a packet of either direction was last accounted; others: when they last told the
    /// original entry.
    pub last_seen: u64,
    pub state: FlowState,
    pub _pad: u32,
}

impl<A: Addr> FlowEntry<A> {
    /// The flow is masqueraded: original packets are marked at ingress.
    pub const MASQUERADE: u8 = 1;

    #[inline(always)]
    pub const fn is_masqueraded(&self) -> bool {
        self.flags & Self::MASQUERADE != 0
    }

    /// The check word of this entry under `key`.
    #[inline(always)]
    pub fn check_for(&self, key: &FlowKey<A>) -> u32 {
        let words = |high: Port, low: Port| (high.0 as u32) << 16 | low.0 as u32;
        let kinds = (self.kind.0 as u32) << 16 | (self.flags as u32) << 8 | key.protocol.0 as u32;
        let sum = key
            .src
            .mix(key.dst, 0x1d87_2b41)
            .wrapping_add(self.address.mix(self.masquerade, 0x3c6e_f372))
            .wrapping_add(layout::mix(
                words(key.src_port, key.dst_port),
                kinds,
                0x510e_527f,
            ))
            .wrapping_add(layout::mix(
                words(self.port, self.client_port),
                (self.masquerade_port.0 as u32) ^ self.generation.rotate_left(16),
                0x1f83_d9ab,
            ))
            .wrapping_add(layout::mix(self.service.0, self.backend.0, 0x5be0_cd19));
        layout::fold_check(sum)
    }
    /// Sets the check word for `key`; in place, as the kernel programs' stack is short.
    #[inline(always)]
    pub fn seal(&mut self, key: &FlowKey<A>) {
        self.check = self.check_for(key);
    }
    /// The entry with its check word set for `key`.
    #[must_use]
    pub fn sealed(mut self, key: &FlowKey<A>) -> Self {
        self.seal(key);
        self
    }
    #[inline(always)]
    pub fn is_whole(&self, key: &FlowKey<A>) -> bool {
        self.check == self.check_for(key)
    }

    /// For an original entry found by `key`: the key of the backend's packets to the client.
    #[inline(always)]
    pub fn reply_key_into(&self, key: &FlowKey<A>, reply: &mut FlowKey<A>) {
        reply.assign(
            &self.address,
            self.port,
            &key.src,
            self.client_port,
            key.protocol,
        );
    }
    /// For an original entry found by `key`: whether `reply` is the key of its replies.
    #[inline(always)]
    pub fn is_replied_by(&self, key: &FlowKey<A>, reply: &FlowKey<A>) -> bool {
        reply.src == self.address
            && reply.dst == key.src
            && reply.src_port == self.port
            && reply.dst_port == self.client_port
            && reply.protocol == key.protocol
    }
    /// For a reply entry found by `key`: the key of the client's packets to the frontend.
    #[inline(always)]
    pub fn original_key_into(&self, key: &FlowKey<A>, original: &mut FlowKey<A>) {
        original.assign(
            &key.dst,
            self.client_port,
            &self.address,
            self.port,
            key.protocol,
        );
    }
    /// For a reply entry found by `key`: whether `original` is the key of what it replies to.
    #[inline(always)]
    pub fn replies_to(&self, key: &FlowKey<A>, original: &FlowKey<A>) -> bool {
        original.src == key.dst
            && original.dst == self.address
            && original.src_port == self.client_port
            && original.dst_port == self.port
            && original.protocol == key.protocol
    }
    /// For a reply entry found by `key`: the key of the backend's packets to the masquerade address.
    #[inline(always)]
    pub fn masqueraded_key_into(&self, key: &FlowKey<A>, masqueraded: &mut FlowKey<A>) {
        masqueraded.assign(
            &key.src,
            key.src_port,
            &self.masquerade,
            self.masquerade_port,
            key.protocol,
        );
    }
    /// For a reply entry found by `key`: whether `masqueraded` is the key of its masqueraded replies.
    #[inline(always)]
    pub fn is_masqueraded_by(&self, key: &FlowKey<A>, masqueraded: &FlowKey<A>) -> bool {
        masqueraded.src == key.src
            && masqueraded.dst == self.masquerade
            && masqueraded.src_port == key.src_port
            && masqueraded.dst_port == self.masquerade_port
            && masqueraded.protocol == key.protocol
    }
}

/// Where a flow is in its life. TCP's closing states follow nf_conntrack's idea, not its every state.
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
    /// As the flows table prints it.
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

/// What a packet says about its flow's life: TCP flags, or the SCTP chunk that means the same.
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
    /// SYN without ACK: a connection begins. SYN+ACK is no SYN.
    #[inline(always)]
    pub const fn begins(self) -> bool {
        self.0 & (Self::SYN | Self::ACK | Self::RST) == Self::SYN
    }
    /// ACK without SYN: the answer to a SYN has been received. A repeated SYN proves nothing of its sender.
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

/// Idle times by protocol and state, in seconds. Never shorter than conntrack's, lest a flow be
/// forgotten that netfilter still knows; kube-proxy's `conntrack` settings replace the marked ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct IdleTimes {
    /// KUBE: `conntrack.tcpEstablishedTimeout`.
    pub tcp_established: u32,
    /// KUBE: `conntrack.tcpCloseWaitTimeout`; for a flow that one side has closed.
    pub tcp_close_wait: u32,
    /// nf_conntrack: TIME_WAIT; for a flow that both sides have closed.
    pub tcp_closed: u32,
    /// KUBE: `conntrack.udpTimeout`.
    pub udp: u32,
    /// KUBE: `conntrack.udpStreamTimeout`.
    pub udp_stream: u32,
    pub sctp_established: u32,
    /// At most this for a flow that nobody has answered, of any protocol: less where a flow table is nearly full.
    pub unanswered: u32,
}

impl IdleTimes {
    pub const DEFAULT: Self = Self {
        tcp_established: 86_400,
        tcp_close_wait: 3_600,
        tcp_closed: 120,
        udp: 30,
        udp_stream: 120,
        sctp_established: 86_400,
        unanswered: u32::MAX,
    };

    /// While another proxy takes over: what has ended goes at once, for the other masquerades by the same ports and its
    /// answers would be taken for ours. UDP is the other's with the next datagram.
    pub const DRAINING: Self = Self {
        tcp_closed: 1,
        udp: 2,
        udp_stream: 2,
        ..Self::DEFAULT
    };

    /// How long a flow may be idle, in nanoseconds.
    #[inline(always)]
    pub const fn limit(&self, protocol: Protocol, state: FlowState) -> u64 {
        let seconds = match (protocol, state) {
            (Protocol::UDP, FlowState::ESTABLISHED) => self.udp_stream,
            (Protocol::UDP, _) => self.udp,
            (Protocol::TCP, FlowState::ESTABLISHED) => self.tcp_established,
            (Protocol::TCP, FlowState::CLOSING_BY_CLIENT | FlowState::CLOSING_BY_BACKEND) => {
                self.tcp_close_wait
            }
            (Protocol::SCTP, FlowState::ANSWERED | FlowState::ESTABLISHED) => self.sctp_established,
            (Protocol::TCP, FlowState::CLOSED) => self.tcp_closed,
            // nf_conntrack: SYN_SENT 120, SYN_RECV 60, SCTP's handshake 3 to 60.
            _ => 120,
        };
        let seconds = match state {
            FlowState::UNANSWERED if seconds > self.unanswered => self.unanswered,
            _ => seconds,
        };
        seconds as u64 * SECOND
    }

    /// Whether a flow last seen then has idled out by `now`. A time in the future never has.
    #[inline(always)]
    pub const fn is_expired(
        &self,
        protocol: Protocol,
        state: FlowState,
        last_seen: u64,
        now: u64,
    ) -> bool {
        now > last_seen && now - last_seen > self.limit(protocol, state)
    }
}

/// How often, in nanoseconds, a long-lived flow's last seen is stored: at most once a second.
pub const REFRESH_INTERVAL: u64 = SECOND;

/// Keys that one run of an `expire` program takes.
pub const EXPIRY_BATCH: usize = 64;

/// What the agent hands to an `expire` program as packet data: this header, then `count` flow keys of
/// the program's family. The program rechecks each entry and removes it with those that belong to it;
/// it returns how many originals (or entries without one) it removed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct ExpiryRequest {
    pub now: u64,
    pub idle_times: IdleTimes,
    pub count: u32,
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
}
