// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! The rings of flows that give way to new ones. What they are for, and which flow goes: `proxy_common::flow::ring`.

use core::arch::asm;

use proxy_common::{
    FlowKey, FlowKind, Protocol,
    flow::ring::{Ring, is_evicted},
};

use crate::{
    globals, helpers,
    maps::{
        RING_HEADS,
        flow::{self, Found},
        tables::Tables,
        workspace::Scratch,
    },
};

/// How many slots are emptied to make room in a full table.
const ROOM_TRIES: u32 = 16;

/// Puts a key into a ring, and removes the flow of the key that it overwrites if that gives way. Returns the slot.
#[inline(never)]
pub fn push<T: Tables>(
    ring: Ring,
    key: &FlowKey<T::Addr>,
    scratch: &mut Scratch<T::Addr>,
) -> u32 {
    let slot = next_slot::<T>(ring);
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

/// Removes the flows of the oldest keys of both rings, because the table is full. Always 0.
#[inline(never)]
pub fn make_room<T: Tables>(scratch: &mut Scratch<T::Addr>) -> u32 {
    // VERIFIER: a loop's context must lie on the stack.
    let mut context = Room::<T>(scratch);
    helpers::repeat(ROOM_TRIES, &mut context, empty_next::<T>);
    0
}

/// Where `make_room` works.
struct Room<'a, T: Tables>(&'a mut Scratch<T::Addr>);

extern "C" fn empty_next<T: Tables>(n: u64, Room(scratch): &mut Room<'_, T>) -> u64 {
    let ring = if n % 2 == 0 {
        Ring::Closed
    } else {
        Ring::HalfOpen
    };
    let slot = next_slot::<T>(ring);
    if let Some(place) = T::rings().get_ptr_mut(slot) {
        // SAFETY: as above. A key without a protocol is nobody's.
        unsafe {
            scratch.evicted = *place;
            (*place).set_protocol(Protocol(0));
        }
        evict::<T>(slot, scratch);
    }
    0
}

#[inline(always)]
fn next_slot<T: Tables>(ring: Ring) -> u32 {
    let family = if T::VERSION == 4 { 0 } else { Ring::COUNT };
    let Some(head) = RING_HEADS.get_ptr_mut(family + ring as u32) else {
        return 0;
    };
    let mut taken = 1_u64;
    // SAFETY: a live element, changed by this instruction only.
    unsafe {
        asm!("{taken} = atomic_fetch_add((u64 *)({head} + 0), {taken})", head = in(reg) head, taken = inout(reg) taken)
    };
    ring.slot(taken, globals::ring_size())
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
