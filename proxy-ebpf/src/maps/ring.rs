// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! The rings of flows that may be evicted for new ones. Their purpose, and which flow is evicted:
//! `proxy_common::flow::ring`.

use core::arch::asm;

use proxy_common::{
    Counter, FlowKey, FlowKind, Protocol,
    flow::ring::{Ring, RingEnds, is_evicted},
};

use crate::{
    count, globals, helpers,
    maps::{
        RING_ENDS,
        flow::{self, Found},
        tables::Tables,
        workspace::{Scratch, Workspace},
    },
};

/// An eviction sooner than this after the last packet of a flow counts as early, in nanoseconds.
/// This is the shortest time-out that conntrack has for a flow that begins.
const EARLY: u64 = 30_000_000_000;
/// How many keys of one ring are looked at to free space in a full flow table.
const ROOM_TRIES: u32 = 16;

/// Puts a key into a ring. Removes the flow of the key that it overwrites, if that flow may be
/// evicted. Returns the slot of the new key. `scratch` belongs to the workspace of attached
/// programs; all of that workspace but the packet and the entry being made is overwritten.
#[inline(always)]
pub fn push<T: Tables>(ring: Ring, key: &FlowKey<T::Addr>, scratch: &mut Scratch<T::Addr>) -> u32 {
    scratch.pushed.copy_from(key);
    push_pushed_to::<T>(ring, scratch)
}

#[inline(always)]
fn push_pushed_to<T: Tables>(ring: Ring, scratch: &mut Scratch<T::Addr>) -> u32 {
    let slot = push_by_number::<T>(ring as u32);
    // The call has changed the scratch.
    helpers::reread(scratch);
    slot
}

/// Puts the key in `scratch.pushed` into a ring. Its flow has just ended or is still used. The
/// flow's entry notes the new slot.
#[inline(always)]
pub fn refile<T: Tables>(ring: Ring, scratch: &mut Scratch<T::Addr>) {
    let slot = push_pushed_to::<T>(ring, scratch);
    let Scratch { pushed, other, .. } = scratch;
    // Looked up again: the push took long, and the element may be another flow's now.
    if let Some(found) = flow::find::<T>(pushed, other)
        && Ring::of(pushed.protocol, found.entry.state) == Some(ring)
    {
        found.element.set_slot(slot);
    }
}

by_family! {
    /// See [`push`]; the key is in `scratch.pushed` of the workspace.
    fn push_by_number(ring) = portolan_push_v4 portolan_push_v6 of push_pushed
}

#[inline(always)]
fn push_pushed<T: Tables>(ring: u32) -> u32 {
    const CLOSED: u32 = Ring::Closed as u32;
    const DATAGRAMS: u32 = Ring::Datagrams as u32;
    let ring = match ring {
        CLOSED => Ring::Closed,
        DATAGRAMS => Ring::Datagrams,
        _ => Ring::HalfOpen,
    };
    let Some(Workspace { scratch, .. }) = flow::filled_workspace::<T>() else {
        return 0;
    };
    let Some(ends) = ends_of::<T>(ring) else {
        return 0;
    };
    let mut number = 1_u64;
    // SAFETY: a word of a live element, written by this instruction only.
    unsafe {
        let pushed = &raw mut (*ends).pushed;
        asm!("{number} = atomic_fetch_add((u64 *)({pushed} + 0), {number})", pushed = in(reg) pushed, number = inout(reg) number)
    };
    let slot = ring.slot(number, globals::RING_SIZE.load());
    let Some(place) = T::rings().get_ptr_mut(slot) else {
        return slot;
    };
    // SAFETY: a live element. Another CPU writes it at the same time only if it has gone round the
    // complete ring meanwhile; a torn key finds no flow.
    unsafe {
        scratch.evicted.copy_from(&*place);
        (*place).copy_from(&scratch.pushed);
    }
    evict::<T>(slot, scratch);
    slot
}

/// Evicts flows, the oldest ones first, because the flow table is full: closed flows, then
/// half-open ones, then those of datagrams. `scratch` is overwritten as by [`push`].
#[inline(always)]
pub fn make_room<T: Tables>(scratch: &mut Scratch<T::Addr>) {
    empty::<T>();
    // The call has changed the scratch.
    helpers::reread(scratch);
}

by_family! {
    /// See [`make_room`].
    fn empty() = portolan_empty_v4 portolan_empty_v6 of empty_rings
}

#[inline(always)]
fn empty_rings<T: Tables>() -> u32 {
    let Some(Workspace { scratch, .. }) = flow::filled_workspace::<T>() else {
        return 0;
    };
    // VERIFIER: a loop's context must lie on the stack.
    let mut room = Eviction::<T> {
        scratch,
        ring: Ring::Closed,
    };
    helpers::repeat(ROOM_TRIES, &mut room, empty_next::<T>);
    room.ring = Ring::HalfOpen;
    helpers::repeat(ROOM_TRIES, &mut room, empty_next::<T>);
    room.ring = Ring::Datagrams;
    helpers::repeat(ROOM_TRIES, &mut room, empty_next::<T>);
    0
}

struct Eviction<'a, T: Tables> {
    scratch: &'a mut Scratch<T::Addr>,
    ring: Ring,
}

extern "C" fn empty_next<T: Tables>(_: u64, room: &mut Eviction<'_, T>) -> u64 {
    let Eviction { scratch, ring } = room;
    let size = globals::RING_SIZE.load();
    let Some(ends) = ends_of::<T>(*ring) else {
        return helpers::STOP;
    };
    // SAFETY: words of a live element. Two CPUs that do this at once empty one slot twice.
    let Some(oldest) = unsafe { ends.read_volatile() }.oldest(size) else {
        return helpers::STOP;
    };
    unsafe { (&raw mut (*ends).emptied).write_volatile(oldest + 1) };
    let slot = ring.slot(oldest, size);
    if let Some(place) = T::rings().get_ptr_mut(slot) {
        // SAFETY: as in `push`. The key stays in its slot: another CPU may just have written it.
        unsafe { scratch.evicted.copy_from(&*place) };
        evict::<T>(slot, scratch);
    }
    0
}

#[inline(always)]
fn ends_of<T: Tables>(ring: Ring) -> Option<*mut RingEnds> {
    let family = if T::VERSION == 4 { 0 } else { Ring::COUNT };
    RING_ENDS.get_ptr_mut(family + ring as u32)
}

/// Removes the flow of the key in `scratch.evicted`, which was in this slot, if the flow may be
/// evicted. The returned 0 has no meaning.
#[inline(never)]
fn evict<T: Tables>(slot: u32, scratch: &mut Scratch<T::Addr>) -> u32 {
    let Scratch {
        found,
        other,
        key,
        holder,
        evicted,
        ..
    } = scratch;
    if evicted.protocol == Protocol(0) {
        return 0;
    }
    let Some(Found { entry, .. }) = flow::find::<T>(evicted, found) else {
        return 0;
    };
    if !is_evicted(entry.state, entry.slot, slot) {
        return 0;
    }
    if !entry.state.is_closed() && helpers::now().wrapping_sub(entry.last_seen) < EARLY {
        count::one(Counter::FlowEvictedEarly as u32);
    }
    match entry.kind {
        FlowKind::ORIGINAL => {
            flow::remove_entries::<T>(evicted, found, other, key, holder);
        }
        FlowKind::UNTOUCHED => flow::remove::<T>(evicted),
        _ => {}
    }
    0
}
