// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! The flow table: find, claim, account, remove. Life cycle and layout are `proxy_common::flow`'s.

use core::{arch::asm, ptr::addr_of_mut};

use aya_ebpf::bindings::{BPF_ANY, BPF_EXIST, BPF_NOEXIST};
use proxy_common::{
    FlowEntry, FlowKey, FlowKind, FlowState, Protocol,
    flow::{REFRESH_INTERVAL, Signals, next_state},
};

use crate::maps::{
    tables::Tables,
    workspace::{EntryBuffer, Scratch, Workspace},
};

const EEXIST: i32 = -17;

/// A copy of an entry, and its element in the map, where two fields may be stored.
pub struct Found<'a, A> {
    pub entry: &'a FlowEntry<A>,
    element: *mut FlowEntry<A>,
}

/// Looks a tuple up and copies its entry to `buffer`, because the stack is too short for a copy. An entry that was recycled
/// meanwhile is a miss.
#[inline(always)]
pub fn find<'a, T: Tables>(
    key: &FlowKey<T::Addr>,
    buffer: &'a mut EntryBuffer<T::Addr>,
) -> Option<Found<'a, T::Addr>> {
    let mut element = T::flows().get_ptr_mut(key)?;
    // SAFETY: both are valid for an entry; the kernel keeps the element's memory.
    unsafe { core::ptr::copy_nonoverlapping(element, buffer.as_mut_ptr(), 1) };
    // The compiler must not read the element again, neither for the check nor for a use: the copy that is checked is the one
    // that is used.
    // SAFETY: a register is copied to itself; all memory counts as touched.
    unsafe { asm!("{element} = {element}", element = inout(reg) element) };
    // SAFETY: copied above; every bit pattern is valid.
    let entry = unsafe { buffer.assume_init_ref() };
    (T::flow_check(key, entry) == entry.check).then_some(Found { entry, element })
}

impl<A> Found<'_, A> {
    /// Accounts a packet in this entry, which is the original's (or an untouched one).
    #[inline(always)]
    pub fn account(&self, reply: bool, protocol: Protocol, signals: Signals, now: u64) {
        let state = next_state(self.entry.state, reply, protocol, signals);
        // SAFETY: aligned words of an element whose memory the kernel keeps; single stores.
        unsafe {
            if state != self.entry.state {
                addr_of_mut!((*self.element).state).write_volatile(state);
            }
            if now.wrapping_sub(self.entry.last_seen) >= REFRESH_INTERVAL {
                addr_of_mut!((*self.element).last_seen).write_volatile(now);
            }
        }
    }
    /// Notes in a reply entry that its original entry is up to date.
    #[inline(always)]
    fn note_refresh(&self, state: FlowState, now: u64) {
        // SAFETY: as above.
        unsafe {
            addr_of_mut!((*self.element).state).write_volatile(state);
            addr_of_mut!((*self.element).last_seen).write_volatile(now);
        }
    }
}

/// Accounts a reply in its flow's original entry: when it changes the state, else at most once a second.
#[inline(always)]
pub fn account_reply<T: Tables>(
    key: &FlowKey<T::Addr>,
    found: &Found<'_, T::Addr>,
    signals: Signals,
    now: u64,
    original_key: &mut FlowKey<T::Addr>,
    other: &mut EntryBuffer<T::Addr>,
) {
    let changes =
        signals.has(Signals::FIN | Signals::RST) || found.entry.state == FlowState::UNANSWERED;
    if changes || now.wrapping_sub(found.entry.last_seen) >= REFRESH_INTERVAL {
        refresh_original::<T>(key, found, signals, now, original_key, other);
    }
}

#[inline(always)]
fn refresh_original<T: Tables>(
    key: &FlowKey<T::Addr>,
    found: &Found<'_, T::Addr>,
    signals: Signals,
    now: u64,
    original_key: &mut FlowKey<T::Addr>,
    other: &mut EntryBuffer<T::Addr>,
) {
    found.entry.original_key_into(key, original_key);
    if let Some(original) = find::<T>(original_key, other)
        && original.entry.kind == FlowKind::ORIGINAL
    {
        original.account(true, key.protocol, signals, now);
    }
    found.note_refresh(FlowState::ANSWERED, now);
}

/// Sets an entry's check word for `key`.
#[inline(always)]
pub fn seal<T: Tables>(entry: &mut FlowEntry<T::Addr>, key: &FlowKey<T::Addr>) {
    entry.check = T::flow_check(key, entry);
}

/// The result of an attempt to enter a tuple.
pub enum Claim {
    Ours,
    /// Another flow has it.
    Taken,
    /// No element is free.
    Full,
}

/// Enters an entry unless its key is there already.
#[inline(always)]
pub fn claim<T: Tables>(key: &FlowKey<T::Addr>, entry: &FlowEntry<T::Addr>) -> Claim {
    match T::flows().insert(key, entry, BPF_NOEXIST as u64) {
        Ok(()) => Claim::Ours,
        Err(EEXIST) => Claim::Taken,
        Err(_) => Claim::Full,
    }
}

/// Enters the reply in `scratch` for the flow `key`. It replaces an entry that belongs to no living flow: an orphan, a closed
/// flow's, or this flow's own.
#[inline(always)]
pub fn claim_reply<T: Tables>(key: &FlowKey<T::Addr>, scratch: &mut Scratch<T::Addr>) -> Claim {
    match claim::<T>(&scratch.key, &scratch.entry) {
        Claim::Taken => {}
        claim => return claim,
    }
    if is_held::<T>(key, scratch) {
        return Claim::Taken;
    }
    match T::flows().insert(&scratch.key, &scratch.entry, BPF_ANY as u64) {
        Ok(()) => Claim::Ours,
        Err(_) => Claim::Full,
    }
}

/// Whether another living flow holds the reply key in `scratch`.
#[inline(never)]
fn is_held<T: Tables>(key: &FlowKey<T::Addr>, scratch: &mut Scratch<T::Addr>) -> bool {
    let Some(held) = find::<T>(&scratch.key, &mut scratch.other) else {
        return true;
    };
    if held.entry.kind != FlowKind::REPLY {
        return true;
    }
    if held.entry.replies_to(&scratch.key, key) {
        return false;
    }
    held.entry
        .original_key_into(&scratch.key, &mut scratch.holder);
    let Some(holder) = find::<T>(&scratch.holder, &mut scratch.other) else {
        return false;
    };
    if holder.entry.kind != FlowKind::ORIGINAL
        || !holder.entry.is_replied_by(&scratch.holder, &scratch.key)
    {
        return false;
    }
    if holder.entry.state != FlowState::CLOSED {
        return true;
    }
    remove::<T>(&scratch.holder);
    false
}

/// This CPU's workspace of the given index, for a packet whose IP header lies at `l3`; for entry points, once in a run.
#[inline(always)]
pub fn workspace<T: Tables>(index: u32, l3: u32) -> Option<&'static mut Workspace<T::Addr>> {
    let workspace = T::workspaces().get_ptr_mut(index)?;
    // SAFETY: this CPU's own element, which an entry point takes once.
    Some(unsafe { Workspace::begin(workspace, l3) })
}

/// Replaces an entry that is there.
#[inline(always)]
pub fn replace<T: Tables>(key: &FlowKey<T::Addr>, entry: &FlowEntry<T::Addr>) -> bool {
    T::flows().insert(key, entry, BPF_EXIST as u64).is_ok()
}

#[inline(always)]
pub fn remove<T: Tables>(key: &FlowKey<T::Addr>) {
    // It may have gone already.
    let _ = T::flows().remove(key);
}

/// Removes the original entry in `scratch.found`, its reply and its masqueraded reply.
#[inline(never)]
pub fn remove_all<T: Tables>(key: &FlowKey<T::Addr>, scratch: &mut Scratch<T::Addr>) -> u32 {
    // SAFETY: the caller has found the original entry there.
    let original = unsafe { scratch.found.assume_init_ref() };
    original.reply_key_into(key, &mut scratch.key);
    if let Some(reply) = find::<T>(&scratch.key, &mut scratch.other)
        && reply.entry.kind == FlowKind::REPLY
        && reply.entry.replies_to(&scratch.key, key)
    {
        if !reply.entry.masquerade_port.is_any() {
            reply
                .entry
                .masqueraded_key_into(&scratch.key, &mut scratch.holder);
            remove::<T>(&scratch.holder);
        }
        remove::<T>(&scratch.key);
    }
    remove::<T>(key);
    0
}
