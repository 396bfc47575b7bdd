// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Keys and values of the flow tables: one entry per direction of a flow, a third when it is
//! masqueraded.
//!
//! For a client C, frontend V, backend B and masquerade address N the entries are
//! original (C to V), reply (B to C) and masqueraded reply (B to N).
//!
//! A flow belongs to the interface that its client's packets come in by. If a pod sends with
//! another pod's address and port, its packets come in by another interface and so have another
//! key.

use core::mem::offset_of;

use super::{FlowState, offload::Offload};
use crate::{Addr, BackendId, Port, Protocol, ServiceId, check, maps::DIRECT_SLOTS};

/// The interface that a client's packets come in by, as flow keys hold it: the lower 24 bits of the
/// index of a pod's interface; 0 for every interface that many clients, or many routes, share.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(transparent)]
pub struct ClientInterface(u32);

impl ClientInterface {
    pub const SHARED: Self = Self(0);
    /// No interface: a process of the node is the client.
    pub const NODE: Self = Self(0x00ff_ffff);

    /// Returns the value for one pod's interface, by its index.
    #[inline(always)]
    pub const fn of_pod(index: u32) -> Self {
        Self(index & 0x00ff_ffff)
    }
    /// Returns the 24 bits of the value, lowest byte first.
    #[inline(always)]
    pub const fn bytes(self) -> [u8; 3] {
        let [a, b, c, _] = self.0.to_le_bytes();
        [a, b, c]
    }
    #[inline(always)]
    pub const fn is_shared(self) -> bool {
        self.0 == 0
    }
}

/// Key of the flow tables: a packet's 5-tuple as it is at the hook that looks the packet up, and in
/// the key of an original entry also the client's interface.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(C)]
pub struct FlowKey<A> {
    pub src: A,
    pub dst: A,
    pub src_port: Port,
    pub dst_port: Port,
    pub protocol: Protocol,
    /// In the key of an original entry: a [`ClientInterface`], lowest byte first. In other keys: 0.
    pub interface: [u8; 3],
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
            interface: [0; 3],
        }
    }
    /// Returns this key with `interface` as the client's interface.
    #[must_use]
    pub fn behind(mut self, interface: ClientInterface) -> Self {
        self.set_interface(interface);
        self
    }
    /// Returns the client's interface.
    #[inline(always)]
    pub const fn interface(&self) -> ClientInterface {
        ClientInterface(self.last_word() >> 8)
    }
    /// Returns protocol and interface as one 32-bit word.
    #[inline(always)]
    pub(super) const fn last_word(&self) -> u32 {
        let [a, b, c] = self.interface;
        u32::from_le_bytes([self.protocol.0, a, b, c])
    }
    /// Stores the client's interface: writes it and the protocol, which stays, as one word.
    #[inline(always)]
    pub fn set_interface(&mut self, interface: ClientInterface) {
        let word = (interface.0 << 8 | self.protocol.0 as u32).to_le();
        // SAFETY: protocol and interface make a word, which follows two ports.
        unsafe { self.store_word(offset_of!(Self, protocol), word) };
    }
    /// Fills the key in place, field by field, because the kernel programs' stack is too short for
    /// copies.
    #[inline(always)]
    pub fn assign(&mut self, src: &A, src_port: Port, dst: &A, dst_port: Port, protocol: Protocol) {
        self.src.assign(src);
        self.dst.assign(dst);
        self.set_protocol(protocol);
        self.set_ports(src_port, dst_port);
    }
    /// Makes this a copy of another key, word by word: for the kernel programs the compiler would
    /// copy it byte by byte.
    #[inline(always)]
    pub fn copy_from(&mut self, key: &Self) {
        self.assign(&key.src, key.src_port, &key.dst, key.dst_port, key.protocol);
        self.set_interface(key.interface());
    }
    /// Stores both ports as one word: a look-up reads them as one, and would have to wait for two
    /// stores.
    #[inline(always)]
    pub fn set_ports(&mut self, src: Port, dst: Port) {
        // SAFETY: two ports make a word, which follows addresses.
        unsafe { self.store_word(offset_of!(Self, src_port), check::join(src.0, dst.0)) };
    }
    /// Stores the protocol, and 0 as the interface: both as one word.
    #[inline(always)]
    pub fn set_protocol(&mut self, protocol: Protocol) {
        let word = u32::from_ne_bytes([protocol.0, 0, 0, 0]);
        // SAFETY: protocol and interface make a word, which follows two ports.
        unsafe { self.store_word(offset_of!(Self, protocol), word) };
    }
    /// # Safety
    /// At `offset` there must be a word of complete fields; `offset` is a multiple of four, as the
    /// key's alignment is.
    #[inline(always)]
    unsafe fn store_word(&mut self, offset: usize, word: u32) {
        // SAFETY: the caller's promise.
        unsafe { (&raw mut *self).byte_add(offset).cast::<u32>().write(word) };
    }
    /// Makes this the tuple of packets in the direction opposite to `key`'s, without an interface.
    #[inline(always)]
    pub fn assign_reversed(&mut self, key: &Self) {
        self.assign(&key.dst, key.dst_port, &key.src, key.src_port, key.protocol);
    }
    /// Returns a hash of the 5-tuple: the same for every packet of one direction of a flow, on
    /// every node of the same byte order.
    #[inline(always)]
    pub fn hash(&self) -> u32 {
        check::fold_check(self.sum())
    }
    /// Returns two numbers: the slot of this tuple in the map `direct`, and the value to store
    /// there, which is never 0.
    #[inline(always)]
    pub fn fingerprint(&self) -> (u32, u32) {
        let sum = self.sum();
        let place = (sum ^ sum >> 32) as u32 % DIRECT_SLOTS;
        (place, check::fold_check(sum))
    }
    #[inline(always)]
    fn sum(&self) -> u64 {
        let ports = (self.src_port.0 as u32) << 16 | self.dst_port.0 as u32;
        self.src.mix(self.dst, 0x6c62_272e).wrapping_add(check::mix(
            ports,
            self.protocol.0 as u32,
            0x07bb_0142,
        ))
    }
}

/// The kind of packets that a flow entry is for.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct FlowKind(pub u8);

impl FlowKind {
    /// Packets from client to frontend; `address`, `port` are the backend's. This entry has the
    /// flow's state and the time of its last packet.
    pub const ORIGINAL: Self = Self(1);
    /// Packets from backend to client; `address`, `port` are the frontend's.
    pub const REPLY: Self = Self(2);
    /// Packets from backend to masquerade address; `address`, `port` are the client's.
    pub const MASQUERADED_REPLY: Self = Self(3);
    /// Answers to datagrams that a node process sent from a served node port; not translated.
    pub const UNTOUCHED: Self = Self(4);

    /// The kind as `portolan flows` prints it.
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

/// Value of the flow tables. All fields but `last_seen`, `state`, `sequence`, `reuse`, `came_by`
/// and `offload` are covered by the check word `check`, and fixed at creation but for `flags` and
/// the masquerade address and port, which are chosen later. A reader copies the entry, and treats a
/// wrong check word as a miss, because another CPU may be writing the slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct FlowEntry<A> {
    #[cfg(feature = "next-layout")]
    pub came_by: u32,
    #[cfg(feature = "next-layout")]
    pub offload: Offload,
    #[cfg(feature = "next-layout")]
    pub _pad: Spare,
    pub check: u32,
    pub kind: FlowKind,
    pub flags: u8,
    /// Packets are rewritten to this port: see [`FlowKind`].
    pub port: Port,
    /// Packets are rewritten to this address: see [`FlowKind`].
    pub address: A,
    /// Original, reply: the masquerade address once a packet has left with it, else unspecified.
    /// Masqueraded reply: the frontend's address; unspecified in an entry made by an earlier
    /// version.
    pub masquerade: A,
    /// Original entry: the source port of packets to the backend. Other entries: the client's own
    /// port.
    pub client_port: Port,
    /// Original, reply: the masquerade port. Masqueraded reply: the frontend's port. 0 where the
    /// address is unspecified.
    pub masquerade_port: Port,
    pub service: ServiceId,
    pub backend: BackendId,
    pub generation: u32,
    /// The client's interface: the key of the original entry has it, too.
    pub interface: ClientInterface,
    pub state: FlowState,
    /// Original: time of the last packet of either direction. Others: when they last updated the
    /// original entry. Both are exact to a second.
    pub last_seen: u64,
    /// TCP, in host order: the number that this direction's sender last acknowledged; the other
    /// direction's segments lie near it. An original entry has other numbers at first: until the
    /// backend answers, the sequence number of the client's SYN; then, until the client
    /// acknowledges, the number that follows the backend's SYN+ACK. SCTP, as on the wire: the tag
    /// of this direction's packets; in an original entry, until the backend answers, the INIT's own
    /// tag. 0: not known.
    pub sequence: u32,
    /// Original, TCP: the timestamp of the client's FIN. Original, UDP: when the frontend was last
    /// verified to belong to the flow's service, see [`super::frontend_is_due`]. Reply: the
    /// masquerade port, as on the wire, of the previous flow from the same client port, or 0.
    pub reuse: u32,
    /// Reply and masqueraded reply with a record: index of the interface by which, for the stack,
    /// the recorded packet came in. Else 0, or [`Self::COPIED`].
    #[cfg(not(feature = "next-layout"))]
    pub came_by: u32,
    /// Record that decides whether packets found by this entry may leave past the node's stack.
    #[cfg(not(feature = "next-layout"))]
    pub offload: Offload,
    #[cfg(not(feature = "next-layout"))]
    pub _pad: Spare,
}

/// Padding of a [`FlowEntry`], which makes its size a multiple of eight bytes.
#[cfg(not(feature = "next-layout"))]
pub type Spare = [u32; 0];
#[cfg(feature = "next-layout")]
pub type Spare = [u32; 2];
/// Value of the padding: no bytes.
#[cfg(not(feature = "next-layout"))]
pub const SPARE: Spare = [];
#[cfg(feature = "next-layout")]
pub const SPARE: Spare = [0; 2];

impl<A: Addr> FlowEntry<A> {
    /// Flag: the flow is masqueraded. Ingress sets the masquerade mark of packets from client to
    /// frontend.
    pub const MASQUERADE: u8 = 1;
    /// Flag: one of the flow's ends has an address that the stack forwards no packets from, or that
    /// is the node's own. Whatever `forwarding` is, every packet of the flow takes the stack.
    pub const NEEDS_STACK: u8 = 2;
    /// Flag of a masqueraded flow: until the backend answers, its packets leave with an outer
    /// header in place of the node's address, see [`crate::carried`].
    pub const CARRIED: u8 = 4;
    /// Flag, at the backend's node: another node masquerades the flow, and this one puts the
    /// client's address back. The original entry's key is from masquerade address to backend;
    /// `address`, `port` are the backend's. `masquerade` is in the original entry the client's
    /// address, in the reply entry the masquerade address; the port likewise.
    pub const RESTORED: u8 = 8;
    /// [`Self::came_by`] of an entry that was copied from another generation of maps; no interface
    /// has this index.
    pub const COPIED: u32 = u32::MAX;

    /// Initializes the entry for a flow that begins at `now`. It has no service, no translation and
    /// no check word yet.
    #[inline(always)]
    pub fn begin(&mut self, kind: FlowKind, interface: ClientInterface, now: u64) {
        let words = core::ptr::from_mut(self).cast::<u64>();
        for n in 0..size_of::<Self>() / size_of::<u64>() {
            // Volatile: otherwise the compiler joins the stores to calls, which clear byte by byte
            // in the kernel programs.
            // SAFETY: an entry is that many words, aligned as they are; all zeros are an entry.
            unsafe { words.add(n).write_volatile(0) };
        }
        self.kind = kind;
        self.interface = interface;
        self.last_seen = now;
    }
    #[inline(always)]
    pub const fn is_masqueraded(&self) -> bool {
        self.flags & Self::MASQUERADE != 0
    }
    #[inline(always)]
    pub const fn is_carried(&self) -> bool {
        self.flags & Self::CARRIED != 0
    }
    #[inline(always)]
    pub const fn is_restored(&self) -> bool {
        self.flags & Self::RESTORED != 0
    }
    #[inline(always)]
    pub const fn needs_stack(&self) -> bool {
        self.flags & Self::NEEDS_STACK != 0
    }
    /// For an original or reply entry: whether the masquerade address and port are chosen, so that
    /// there is a masqueraded reply entry. For the latter: whether it has the frontend's address
    /// and port.
    #[inline(always)]
    pub const fn knows_masquerade(&self) -> bool {
        !self.masquerade_port.is_any() && !self.is_restored()
    }
    /// For an original entry found by `key`: the client's address as the backend sees it before any
    /// masquerading.
    #[inline(always)]
    const fn client<'a>(&'a self, key: &'a FlowKey<A>) -> &'a A {
        if self.is_restored() {
            &self.masquerade
        } else {
            &key.src
        }
    }
    /// For a reply entry found by `key`: source and port in the key of its flow's original entry.
    #[inline(always)]
    const fn origin<'a>(&'a self, key: &'a FlowKey<A>) -> (&'a A, Port) {
        if self.is_restored() {
            (&self.masquerade, self.masquerade_port)
        } else {
            (&key.dst, self.client_port)
        }
    }

    /// Returns the check word that this entry must have under `key`.
    #[inline(always)]
    pub fn check_for(&self, key: &FlowKey<A>) -> u32 {
        let words = |high: Port, low: Port| (high.0 as u32) << 16 | low.0 as u32;
        let kinds = (self.kind.0 as u32) << 24 | (self.flags as u32) << 16;
        let sum = key
            .src
            .mix(key.dst, 0x1d87_2b41)
            .wrapping_add(self.address.mix(self.masquerade, 0x3c6e_f372))
            .wrapping_add(check::mix(
                words(key.src_port, key.dst_port),
                key.last_word(),
                0x510e_527f,
            ))
            .wrapping_add(check::mix(
                words(self.port, self.client_port),
                kinds | self.masquerade_port.0 as u32,
                0x1f83_d9ab,
            ))
            .wrapping_add(check::mix(
                self.service.0 ^ self.generation.rotate_left(16),
                self.backend.0 ^ self.interface.0.rotate_left(8),
                0x5be0_cd19,
            ));
        check::fold_check(sum)
    }
    /// Sets the check word for `key`, in place because the kernel programs' stack is short.
    #[inline(always)]
    pub fn seal(&mut self, key: &FlowKey<A>) {
        self.check = self.check_for(key);
    }
    /// Returns the entry with its check word set for `key`.
    #[must_use]
    pub fn sealed(mut self, key: &FlowKey<A>) -> Self {
        self.seal(key);
        self
    }
    #[inline(always)]
    pub fn is_whole(&self, key: &FlowKey<A>) -> bool {
        self.check == self.check_for(key)
    }

    /// For an original entry found by `key`: writes the key of the backend's packets to the client
    /// into `reply`.
    #[inline(always)]
    pub fn reply_key_into(&self, key: &FlowKey<A>, reply: &mut FlowKey<A>) {
        let client = self.client(key);
        let (backend, port) = (&self.address, self.port);
        reply.assign(backend, port, client, self.client_port, key.protocol);
    }
    /// For an original entry found by `key`: whether `reply` is the key of the flow's replies.
    #[inline(always)]
    pub fn is_replied_by(&self, key: &FlowKey<A>, reply: &FlowKey<A>) -> bool {
        reply.src == self.address
            && reply.dst == *self.client(key)
            && reply.src_port == self.port
            && reply.dst_port == self.client_port
            && reply.protocol == key.protocol
    }
    /// For a reply entry found by `key`: writes the key of the client's packets to the frontend
    /// into `original`.
    #[inline(always)]
    pub fn original_key_into(&self, key: &FlowKey<A>, original: &mut FlowKey<A>) {
        let (src, src_port) = self.origin(key);
        original.assign(src, src_port, &self.address, self.port, key.protocol);
        original.set_interface(self.interface);
    }
    /// For a reply entry found by `key`: whether `original` is the key of its flow's original
    /// entry.
    #[inline(always)]
    pub fn replies_to(&self, key: &FlowKey<A>, original: &FlowKey<A>) -> bool {
        let (src, src_port) = self.origin(key);
        original.src == *src
            && original.dst == self.address
            && original.src_port == src_port
            && original.dst_port == self.port
            && original.protocol == key.protocol
            && original.interface() == self.interface
    }
    /// For a reply entry found by `key`: writes the key of the backend's packets to the masquerade
    /// address into `masqueraded`.
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
    /// For a reply entry found by `key`: whether `masqueraded` is the key of the flow's masqueraded
    /// replies.
    #[inline(always)]
    pub fn is_masqueraded_by(&self, key: &FlowKey<A>, masqueraded: &FlowKey<A>) -> bool {
        masqueraded.src == key.src
            && masqueraded.dst == self.masquerade
            && masqueraded.src_port == key.src_port
            && masqueraded.dst_port == self.masquerade_port
            && masqueraded.protocol == key.protocol
    }
}
