// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! The rings of flows that give way to new ones. What they are for, and which flow goes: `proxy_common::flow::ring`.

use core::arch::asm;

use proxy_common::{
    FlowKey, FlowKind, Protocol,
    flow::ring::{Ring, RingEnds, is_evicted},
};

use crate::{
    globals, helpers,
    maps::{
        RING_ENDS,
        flow::{self, Found},
        tables::Tables,
        workspace::Scratch,
    },
};

/// How many keys of one ring are looked at to make room in a full table.
const ROOM_TRIES: u32 = 16;

/// Puts a key into a ring, and removes the flow of the key that it overwrites if that gives way. Returns the slot.
#[inline(never)]
pub fn push<T: Tables>(ring: Ring, key: &FlowKey<T::Addr>, scratch: &mut Scratch<T::Addr>) -> u32 {
    let Some(ends) = ends_of::<T>(ring) else {
        return 0;
    };
    let mut number = 1_u64;
    // SAFETY: a word of a live element, written by this instruction only.
    unsafe {
        let pushed = &raw mut (*ends).pushed;
        asm!("{number} = atomic_fetch_add((u64 *)({pushed} + 0), {number})", pushed = in(reg) pushed, number = inout(reg) number)
    };
    let slot = ring.slot(number, globals::ring_size());
    let Some(place) = T::rings().get_ptr_mut(slot) else {
        return slot;
    };
    // SAFETY: a live element. Another CPU writes it at the same time only if it has gone round the whole ring meanwhile; a
    // torn key finds no flow.
    unsafe {
        scratch.evicted = *place;
        *place = *key;
    }
    evict::<T>(slot, scratch);
    slot
}

/// Removes flows that give way, the oldest ones first, because the table is full: closed ones, then half-open ones. Always 0.
#[inline(never)]
pub fn make_room<T: Tables>(scratch: &mut Scratch<T::Addr>) -> u32 {
    // VERIFIER: a loop's context must lie on the stack.
    let mut room = Room::<T> {
        scratch,
        ring: Ring::Closed,
    };
    helpers::repeat(ROOM_TRIES, &mut room, empty_next::<T>);
    room.ring = Ring::HalfOpen;
    helpers::repeat(ROOM_TRIES, &mut room, empty_next::<T>);
    0
}

/// Where `make_room` works.
struct Room<'a, T: Tables> {
    scratch: &'a mut Scratch<T::Addr>,
    ring: Ring,
}

extern "C" fn empty_next<T: Tables>(_: u64, room: &mut Room<'_, T>) -> u64 {
    const STOP: u64 = 1;
    let Room { scratch, ring } = room;
    let size = globals::ring_size();
    let Some(ends) = ends_of::<T>(*ring) else {
        return STOP;
    };
    // SAFETY: words of a live element. Two CPUs that do this at once empty one slot twice.
    let Some(oldest) = unsafe { ends.read_volatile() }.oldest(size) else {
        return STOP;
    };
    unsafe { (&raw mut (*ends).emptied).write_volatile(oldest + 1) };
    let slot = ring.slot(oldest, size);
    if let Some(place) = T::rings().get_ptr_mut(slot) {
        // SAFETY: as in `push`. A key without a protocol is nobody's.
        unsafe {
            scratch.evicted = *place;
            (*place).set_protocol(Protocol(0));
        }
        evict::<T>(slot, scratch);
    }
    0
}

#[inline(always)]
fn ends_of<T: Tables>(ring: Ring) -> Option<*mut RingEnds> {
    let family = if T::VERSION == 4 { 0 } else { Ring::COUNT };
    RING_ENDS.get_ptr_mut(family + ring as u32)
}

/// Removes the flow of the key in `scratch.evicted`, which stood in this slot, if it gives way.
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
    match entry.kind {
        FlowKind::ORIGINAL => {
            flow::remove_entries::<T>(evicted, found, other, key, holder);
        }
        FlowKind::UNTOUCHED => flow::remove::<T>(evicted),
        _ => {}
    }
    0
}
