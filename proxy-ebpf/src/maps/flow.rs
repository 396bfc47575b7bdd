// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! The flow table: finds, enters, accounts and removes entries. Life cycle and layout of flows are
//! in `proxy_common::flow`.

use core::{arch::asm, ptr, ptr::addr_of_mut};

use proxy_common::{
    Addr, FlowEntry, FlowKey, FlowKind, FlowState, Port, Protocol, ServiceId,
    flow::{
        Change, Offload, REFRESH_INTERVAL, Signals, change_by_backend, change_by_client, coarse,
        frontend_is_due, is_near, is_routine, proves_answer, takes_answer,
    },
};

use crate::{
    helpers,
    maps::{
        slots,
        tables::Tables,
        workspace::{self, EntryBuffer, Parts, Scratch},
    },
    packet::{Packet, Skb},
};

/// A copy of a flow entry, and the entry's element in the flow table.
pub struct Found<'a, A> {
    pub entry: &'a FlowEntry<A>,
    pub element: Element<A>,
}

/// An element of the flow table. Some of its fields may be stored at any time.
#[derive(Clone, Copy)]
pub struct Element<A>(*mut FlowEntry<A>);

/// Looks a tuple up and copies its entry to `buffer`, because the stack is too short for a copy.
#[inline(always)]
pub fn find<'a, T: Tables>(
    key: &FlowKey<T::Addr>,
    buffer: &'a mut EntryBuffer<T::Addr>,
) -> Option<Found<'a, T::Addr>> {
    let number = slots::find::<T>(ptr::from_ref(key).cast_mut(), buffer.as_mut_ptr());
    let element = Element(slots::element::<T>(number)?);
    // SAFETY: copied, as there is an element; every bit pattern is a valid entry.
    let entry = unsafe { &*helpers::reread(buffer.as_mut_ptr()) };
    Some(Found { entry, element })
}

impl<A> Element<A> {
    /// Changes the entry's state by atomic instructions, because another CPU may change it at the
    /// same time.
    #[inline(always)]
    fn change(self, change: Change) {
        // SAFETY: an aligned word of an element whose memory the kernel keeps.
        unsafe {
            let state = addr_of_mut!((*self.0).state);
            if change.clear != FlowState::NEW {
                asm!("lock *(u32 *)({state} + 0) &= {bits}", state = in(reg) state, bits = in(wreg) !change.clear.0);
            }
            if change.set != FlowState::NEW {
                asm!("lock *(u32 *)({state} + 0) |= {bits}", state = in(reg) state, bits = in(wreg) change.set.0);
            }
        }
    }
    #[inline(always)]
    fn see(self, now: u64) {
        // SAFETY: an aligned word of an element whose memory the kernel keeps; a single store.
        unsafe { addr_of_mut!((*self.0).last_seen).write_volatile(now) };
    }
    /// Stores by which interface the recorded reply came in, [`FlowEntry::came_by`].
    #[inline(always)]
    pub fn set_came_by(self, interface: u32) {
        // SAFETY: as above.
        unsafe { addr_of_mut!((*self.0).came_by).write_volatile(interface) };
    }
    #[inline(always)]
    fn set_sequence(self, sequence: u32) {
        // SAFETY: as above.
        unsafe { addr_of_mut!((*self.0).sequence).write_volatile(sequence) };
    }
    /// Stores by which interface, and when, the stack let a packet of the entry pass.
    #[inline(always)]
    pub fn set_offload(self, offload: Offload) {
        // SAFETY: as above.
        unsafe { addr_of_mut!((*self.0).offload).write_volatile(offload) };
    }
    #[inline(always)]
    fn set_reuse(self, timestamp: u32) {
        // SAFETY: as above.
        unsafe { addr_of_mut!((*self.0).reuse).write_volatile(timestamp) };
    }
}

impl<A: Addr> Found<'_, A> {
    /// Notes in the entry that a packet was seen, at most once a second.
    #[inline(always)]
    pub fn touch(&self, now: u64) {
        if now.wrapping_sub(self.entry.last_seen) >= REFRESH_INTERVAL {
            self.element.see(now);
        }
    }
    /// Changes the entry's state and notes that a packet was seen.
    #[inline(always)]
    pub fn change(&self, change: Change, now: u64) {
        if change != Change::NONE {
            self.element.change(change);
        }
        self.touch(now);
    }
    /// Whether the frontend of a UDP flow still belongs to the flow's service, checked at most once
    /// a second. `service` looks up the service that the frontend belongs to now.
    #[inline(always)]
    pub fn keeps_frontend(&self, now: u64, service: impl FnOnce() -> Option<ServiceId>) -> bool {
        if !frontend_is_due(self.entry.reuse, now) {
            return true;
        }
        self.element.set_reuse(coarse(now));
        service() == Some(self.entry.service)
    }
    /// For the entry of a masqueraded reply: whether this reply changes nothing in its flow, see
    /// [`is_routine`]. If it does, egress accounts the reply, and this entry notes that.
    #[inline(always)]
    pub fn changes_nothing(&self, skb: Skb, packet: &Packet<A>, now: u64) -> bool {
        let (protocol, signals, entry) = (packet.key.protocol, packet.signals, self.entry);
        let number = if protocol == Protocol::TCP {
            packet.acknowledgement(skb)
        } else {
            0
        };
        let age = now.wrapping_sub(entry.last_seen);
        if entry.state.has(FlowState::ANSWERED)
            && is_routine(protocol, signals, number, entry.sequence, age)
        {
            return true;
        }
        self.note_answered(number, now);
        false
    }
    /// Notes a TCP segment's acknowledgement number in the entry, if the number is plausible.
    #[inline(always)]
    fn follow(&self, acknowledged: u32) {
        if acknowledged != self.entry.sequence && self.follows(acknowledged) {
            self.element.set_sequence(acknowledged);
        }
    }
    /// Whether a TCP segment of this entry's direction may have this acknowledgement number.
    #[inline(always)]
    pub fn follows(&self, acknowledged: u32) -> bool {
        is_near(acknowledged, self.entry.sequence)
    }

    /// Accounts a client's packet that does not change the flow's state, in the original entry.
    #[inline(always)]
    pub fn see_settled(&self, protocol: Protocol, acknowledged: u32, now: u64) {
        self.touch(now);
        if protocol == Protocol::TCP {
            self.follow(acknowledged);
        }
    }
    /// Accounts a reply that does not change the flow's state, in the reply entry; the original
    /// entry has been updated already.
    #[inline(always)]
    pub fn see_reply(&self, protocol: Protocol, acknowledged: u32, now: u64) {
        if protocol == Protocol::TCP {
            self.follow(acknowledged);
        }
        self.element.see(now);
    }
    /// Notes in the entry of the masqueraded reply that its flow is answered, and that the flow's
    /// other entries are up to date.
    #[inline(always)]
    pub fn note_answered(&self, acknowledged: u32, now: u64) {
        self.element.set_sequence(acknowledged);
        self.mark_answered(now);
    }
    /// Notes in a reply's entry that the original entry is up to date.
    #[inline(always)]
    fn mark_answered(&self, now: u64) {
        if self.entry.state == FlowState::NEW {
            self.element.change(Change {
                set: FlowState::ANSWERED,
                clear: FlowState::NEW,
            });
        }
        self.element.see(now);
    }
}

/// Accounts a client's packet in its flow's original entry, `found`. `reply_key` and `other` are
/// buffers.
#[inline(always)]
pub fn account<T: Tables>(
    skb: Skb,
    packet: &Packet<T::Addr>,
    found: &Found<'_, T::Addr>,
    now: u64,
    reply_key: &mut FlowKey<T::Addr>,
    other: &mut EntryBuffer<T::Addr>,
) {
    let entry = found.entry;
    let (protocol, signals) = (packet.key.protocol, packet.signals);
    let proven = || match protocol {
        Protocol::TCP if entry.state.has(FlowState::PICKED_UP) => {
            is_near(packet.acknowledgement(skb), entry.sequence)
        }
        Protocol::TCP => proves_answer(packet.acknowledgement(skb), entry.sequence),
        _ => packet.tag(skb) == entry.sequence,
    };
    // Only the client's own packets come in by a pod's interface.
    let expected = || {
        !packet.key.interface().is_shared()
            || ends_expectedly::<T>(skb, packet, entry, reply_key, other) != 0
    };
    let repeats = || repeats(skb, packet, entry);
    let change = change_by_client(entry.state, protocol, signals, repeats, proven, expected);
    found.change(change, now);
    if protocol != Protocol::UDP && signals.begins() && !entry.state.has(FlowState::ANSWERED) {
        found.element.set_sequence(packet.first_number(skb));
    }
    if protocol == Protocol::TCP {
        if signals.has(Signals::FIN) {
            // For the next flow on this flow's masquerade port.
            found.element.set_reuse(packet.timestamp(skb));
            if change.set.has(FlowState::CLIENT_FIN) && !entry.state.has(FlowState::CLIENT_FIN) {
                expect_answer::<T>(&packet.key, entry, reply_key, other);
            }
        }
        if entry.state.has(FlowState::ACKNOWLEDGED) && signals.acknowledges() {
            found.follow(packet.acknowledgement(skb));
        }
    }
}

/// Has the next reply of a flow accounted, however soon it comes: it shows that the backend is
/// still there after the client's FIN. `reply_key` and `other` are buffers; the returned 0 has no
/// meaning.
#[inline(never)]
fn expect_answer<T: Tables>(
    key: &FlowKey<T::Addr>,
    entry: &FlowEntry<T::Addr>,
    reply_key: &mut FlowKey<T::Addr>,
    other: &mut EntryBuffer<T::Addr>,
) -> u32 {
    entry.reply_key_into(key, reply_key);
    let Some(reply) = find::<T>(reply_key, other) else {
        return 0;
    };
    reply.element.see(0);
    if reply.entry.knows_masquerade() {
        reply_key.dst.assign(&reply.entry.masquerade);
        reply_key.set_ports(reply_key.src_port, reply.entry.masquerade_port);
        if let Some(element) = element::<T>(reply_key) {
            element.see(0);
        }
    }
    0
}

/// Whether a SYN equals the last SYN of its unanswered flow; `entry` is the flow's original entry.
#[inline(always)]
pub fn repeats<A: Addr>(skb: Skb, packet: &Packet<A>, entry: &FlowEntry<A>) -> bool {
    packet.first_number(skb) == entry.sequence
}

/// Whether a packet that ends a connection may come from the connection's client; `entry` is the
/// flow's original entry. 0 means no. `reply_key` and `other` are buffers.
#[inline(never)]
fn ends_expectedly<T: Tables>(
    skb: Skb,
    packet: &Packet<T::Addr>,
    entry: &FlowEntry<T::Addr>,
    reply_key: &mut FlowKey<T::Addr>,
    other: &mut EntryBuffer<T::Addr>,
) -> u32 {
    entry.reply_key_into(&packet.key, reply_key);
    match find::<T>(reply_key, other) {
        Some(reply) => is_end_of(skb, packet, entry.sequence, reply.entry.sequence) as u32,
        None => 1,
    }
}

/// Whether a packet that ends a connection has a number that only the connection's two ends know.
/// `own` is the number noted in the entry of the packet's direction, `others` the one in the entry
/// of the other direction.
#[inline(always)]
fn is_end_of<A: Addr>(skb: Skb, packet: &Packet<A>, own: u32, others: u32) -> bool {
    match packet.key.protocol {
        Protocol::TCP => is_near(packet.sequence(skb), others),
        // An end that does not know the association sends back the other end's tag (RFC 9260,
        // 8.5.1).
        _ => {
            let tag = packet.tag(skb);
            tag == own || tag == others
        }
    }
}

/// Accounts a reply in its flow's original entry: always when it changes the state, else at most
/// once a second. `found` is the reply entry, `original_key` and `other` are buffers.
#[inline(always)]
pub fn account_reply<T: Tables>(
    skb: Skb,
    packet: &Packet<T::Addr>,
    found: &Found<'_, T::Addr>,
    now: u64,
    original_key: &mut FlowKey<T::Addr>,
    other: &mut EntryBuffer<T::Addr>,
) {
    let (key, signals, entry) = (&packet.key, packet.signals, found.entry);
    if key.protocol == Protocol::TCP && signals.acknowledges() {
        found.follow(packet.acknowledgement(skb));
    }
    let changes =
        signals.has(Signals::FIN | Signals::RST | Signals::SYN) || entry.state == FlowState::NEW;
    if !changes && now.wrapping_sub(entry.last_seen) < REFRESH_INTERVAL {
        return;
    }
    entry.original_key_into(key, original_key);
    if let Some(original) = find::<T>(original_key, other)
        && original.entry.kind == FlowKind::ORIGINAL
    {
        let state = original.entry.state;
        if takes_answer(state, signals) {
            // Stored before the state says that there is an answer to acknowledge.
            let (own, next) = match key.protocol {
                Protocol::TCP => (
                    packet.acknowledgement(skb),
                    // SYN counts as one byte.
                    packet
                        .sequence(skb)
                        .wrapping_add(signals.has(Signals::SYN) as u32),
                ),
                _ => (packet.tag(skb), packet.initiate_tag(skb)),
            };
            found.element.set_sequence(own);
            original.element.set_sequence(next);
        }
        let expected = || is_end_of(skb, packet, entry.sequence, original.entry.sequence);
        let carries_data = || packet.carries_data(skb);
        let change = change_by_backend(state, key.protocol, signals, expected, carries_data);
        original.change(change, now);
    }
    found.mark_answered(now);
}

/// Sets an entry's check word for `key`.
#[inline(always)]
pub fn seal<T: Tables>(entry: &mut FlowEntry<T::Addr>, key: &FlowKey<T::Addr>) {
    entry.check = T::flow_check(key, entry);
}

/// The result of an attempt to enter an entry under a new tuple into the flow table.
pub enum Claim {
    Ours,
    /// Another flow already has an entry under the tuple.
    Taken,
    /// No way is free in the tuple's sets, see `room`.
    Full,
}

/// Enters an entry into the flow table unless its key is there already.
#[inline(always)]
pub fn claim<T: Tables>(key: &FlowKey<T::Addr>, entry: &FlowEntry<T::Addr>) -> Claim {
    let (key, entry) = (ptr::from_ref(key), ptr::from_ref(entry));
    match slots::enter::<T>(key.cast_mut(), entry.cast_mut()) {
        slots::OURS => Claim::Ours,
        slots::TAKEN => Claim::Taken,
        _ => Claim::Full,
    }
}

/// Returns this CPU's workspace with this index, for a packet whose IP header lies at `l3`; None if
/// there is no such index. For entry points only, once in a run.
#[inline(always)]
pub fn workspace<T: Tables>(index: u32, l3: u32) -> Option<Parts<T::Addr>> {
    let parts = parts::<T>(index)?;
    parts.0.begin(l3);
    Some(parts)
}

/// Returns this CPU's workspace for attached programs, as the previous function of this run has
/// left it. That function must have returned.
#[inline(always)]
pub fn filled_workspace<T: Tables>() -> Option<Parts<T::Addr>> {
    parts::<T>(workspace::ATTACHED)
}

#[inline(always)]
fn parts<T: Tables>(index: u32) -> Option<Parts<T::Addr>> {
    let workspace = T::workspaces().get_ptr_mut(index)?;
    // SAFETY: this CPU's own element. An entry point takes it once, and another function when the
    // previous one no longer has a reference to it.
    let workspace = unsafe { &mut *workspace };
    Some((
        &mut workspace.packet,
        &mut workspace.clock,
        &mut workspace.scratch,
    ))
}

/// Returns the element of a key.
#[inline(always)]
fn element<T: Tables>(key: &FlowKey<T::Addr>) -> Option<Element<T::Addr>> {
    let number = slots::locate::<T>(ptr::from_ref(key).cast_mut());
    slots::element::<T>(number).map(Element)
}

/// Stores `entry`'s flags, masquerade address and port, and check word in the entry of its key, in
/// place; `false` if the key is not in the table. A reader sees them all or reads again.
#[inline(always)]
pub fn amend<T: Tables>(key: &FlowKey<T::Addr>, entry: &FlowEntry<T::Addr>) -> bool {
    let Some(Element(element)) = element::<T>(key) else {
        return false;
    };
    // SAFETY: a live element.
    unsafe {
        (*element).flags = entry.flags;
        (*element).masquerade.assign(&entry.masquerade);
        (*element).masquerade_port = entry.masquerade_port;
        (*element).check = entry.check;
    }
    true
}

/// Notes in an entry, in place of its record, that the stack is asked.
#[inline(always)]
pub fn note_asked<T: Tables>(key: &FlowKey<T::Addr>, now: u64) {
    if let Some(element) = element::<T>(key) {
        element.set_offload(Offload::asked(now));
    }
}

/// Removes the entry of a key; `false` if there is none, or if another CPU has removed it.
#[inline(always)]
pub fn remove<T: Tables>(key: &FlowKey<T::Addr>) -> bool {
    slots::remove::<T>(ptr::from_ref(key).cast_mut()) != 0
}

/// Removes the original entry in `scratch.found`, which was found by `key`, and its flow's reply
/// and masqueraded reply entries. Returns the flow's masquerade port, or no port.
#[inline(always)]
pub fn remove_all<T: Tables>(key: &FlowKey<T::Addr>, scratch: &mut Scratch<T::Addr>) -> Port {
    let Scratch {
        found,
        other,
        key: reply_key,
        holder,
        ..
    } = scratch;
    Port(remove_entries::<T>(key, found, other, reply_key, holder) as u16)
}

/// Removes the original entry that was found by `key`, and its flow's reply and masqueraded reply
/// entries; the other arguments are buffers. Returns the masquerade port, as on the wire, or 0.
#[inline(never)]
pub fn remove_entries<T: Tables>(
    key: &FlowKey<T::Addr>,
    found: &EntryBuffer<T::Addr>,
    other: &mut EntryBuffer<T::Addr>,
    reply_key: &mut FlowKey<T::Addr>,
    masqueraded_key: &mut FlowKey<T::Addr>,
) -> u32 {
    // SAFETY: the caller has found the original entry there.
    let original = unsafe { found.assume_init_ref() };
    original.reply_key_into(key, reply_key);
    let mut masquerade_port = 0;
    if let Some(reply) = find::<T>(reply_key, other)
        && reply.entry.kind == FlowKind::REPLY
        && reply.entry.replies_to(reply_key, key)
    {
        if reply.entry.knows_masquerade() {
            // The original entry first, because another CPU may be taking the port over: only one
            // of the two CPUs finds the original entry still in the table.
            if !remove::<T>(key) {
                return 0;
            }
            masquerade_port = reply.entry.masquerade_port.0 as u32;
            reply.entry.masqueraded_key_into(reply_key, masqueraded_key);
            remove::<T>(masqueraded_key);
        }
        remove::<T>(reply_key);
    }
    remove::<T>(key);
    masquerade_port
}
