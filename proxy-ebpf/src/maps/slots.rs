// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! The slots of the flow table: finds, enters and removes an entry. Where a key's slot is:
//! `proxy_common::flow::places`. Called by `flow`.

use core::{arch::asm, ptr};

use proxy_common::{
    Addr, FlowEntry, FlowKey,
    flow::places::{CLAIMED, FlowSlot, HASHED, Places, ROOMY, Tags, VALID, WAYS},
};

use crate::{globals, helpers, maps::tables::Tables};

/// What [`enter`] returns. `TAKEN`: the key has an entry, or one with the same hash stands in its
/// sets. `FULL`: its two sets have no free way.
pub const OURS: u32 = 0;
pub const TAKEN: u32 = 1;
pub const FULL: u32 = 2;
const AGAIN: u32 = 3;

by_family! {
    /// Copies the entry of a key to `entry`; returns the number of its slot plus one, or 0.
    pub fn find(key: FlowKey, entry: FlowEntry) = portolan_find_v4 portolan_find_v6 of copy_found
}

by_family! {
    /// Returns the number of the slot that has a key's entry plus one, or 0.
    pub fn locate(key: FlowKey) = portolan_locate_v4 portolan_locate_v6 of number_of
}

by_family! {
    /// Enters an entry unless its key has one; returns [`OURS`], [`TAKEN`] or [`FULL`].
    pub fn enter(key: FlowKey, entry: FlowEntry) = portolan_enter_v4 portolan_enter_v6 of enter_new
}

by_family! {
    /// Removes the entry of a key; returns 0 if there was none, or if another CPU removed it first.
    pub fn remove(key: FlowKey) = portolan_remove_v4 portolan_remove_v6 of free
}

/// Returns the element of the flow table with this number; `None` for 0.
#[inline(always)]
pub fn element<T: Tables>(number: u32) -> Option<*mut FlowEntry<T::Addr>> {
    let slot = T::flow_slots().get_ptr_mut(number.wrapping_sub(1))?;
    // SAFETY: a live element.
    Some(unsafe { &raw mut (*slot).entry })
}

/// Returns where a key's entry may be.
#[inline(always)]
pub fn places_of<A: Addr>(key: &FlowKey<A>) -> Places {
    let sets = if A::BITS == 32 {
        globals::FLOW_SETS_V4.load()
    } else {
        globals::FLOW_SETS_V6.load()
    };
    key.places(sets, globals::HASH_KEY.load())
}

#[inline(always)]
fn copy_found<T: Tables>(key: *mut FlowKey<T::Addr>, entry: *mut FlowEntry<T::Addr>) -> u32 {
    let number = number_of::<T>(key);
    let Some(element) = element::<T>(number) else {
        return 0;
    };
    // Once more, as another CPU may have been amending the entry.
    for _ in 0..2 {
        // SAFETY: the kernel has checked the pointers; every bit pattern is a valid entry.
        let is_whole = unsafe {
            ptr::copy_nonoverlapping(helpers::reread(element), entry, 1);
            (*helpers::reread(entry)).is_whole(&*key)
        };
        if is_whole {
            return number;
        }
    }
    0
}

#[inline(always)]
fn number_of<T: Tables>(key: *mut FlowKey<T::Addr>) -> u32 {
    // SAFETY: the kernel has checked the pointer.
    located::<T>(unsafe { &*key }).map_or(0, |(slot, _)| slot + 1)
}

/// Finds a key; returns its slot and the tag of its entry.
#[inline(always)]
fn located<T: Tables>(key: &FlowKey<T::Addr>) -> Option<(u32, u32)> {
    let Places { sets, tag } = places_of(key);
    let tag = tag | VALID;
    in_set::<T>(key, sets[0], tag).or_else(|| in_set::<T>(key, sets[1], tag))
}

#[inline(always)]
fn in_set<T: Tables>(key: &FlowKey<T::Addr>, set: u32, tag: u32) -> Option<(u32, u32)> {
    let ways = ways_with(T::flow_tags().get_ptr_mut(set)?, !0, tag);
    if ways == 0 {
        return None;
    }
    let number = set * WAYS + first_of(ways);
    let slot: *mut FlowSlot<_> = T::flow_slots().get_ptr_mut(number)?;
    // SAFETY: a live element; a key that is being written belongs to no tag.
    (unsafe { (*slot).key } == *key).then_some((number, tag))
}

#[inline(always)]
fn enter_new<T: Tables>(key: *mut FlowKey<T::Addr>, entry: *mut FlowEntry<T::Addr>) -> u32 {
    // SAFETY: the kernel has checked both pointers.
    let (key, entry) = unsafe { (&*key, &*entry) };
    let Places { sets, tag } = places_of(key);
    let tags = T::flow_tags();
    let (Some(first), Some(second)) = (tags.get_ptr_mut(sets[0]), tags.get_ptr_mut(sets[1])) else {
        return FULL;
    };
    let once = || enter_once::<T>(key, entry, sets, tag, [first, second]);
    // VERIFIER: no loop. Linux 6.1 refuses one that begins behind a call.
    match once() {
        AGAIN => match once() {
            AGAIN => match once() {
                AGAIN => TAKEN,
                end => end,
            },
            end => end,
        },
        end => end,
    }
}

/// Tries once to enter an entry. Returns [`AGAIN`] while another CPU is writing an entry with the
/// same hash, or has claimed a way for one at the same moment; three tries take about as long as it
/// writes one.
#[inline(always)]
fn enter_once<T: Tables>(
    key: &FlowKey<T::Addr>,
    entry: &FlowEntry<T::Addr>,
    sets: [u32; 2],
    tag: u32,
    [first, second]: [*mut Tags; 2],
) -> u32 {
    let with = || ways_with(first, HASHED, tag) | ways_with(second, HASHED, tag) << WAYS;
    if with() != 0 {
        if ways_with(first, !0, VALID | tag) | ways_with(second, !0, VALID | tag) != 0 {
            return TAKEN;
        }
        return AGAIN;
    }
    let (mut set, mut ways, mut free) = (sets[0], first, ways_with(first, !0, 0));
    if free.count_ones() < ROOMY {
        let others = ways_with(second, !0, 0);
        if others.count_ones() > free.count_ones() {
            (set, ways, free) = (sets[1], second, others);
        }
    }
    if free == 0 {
        return FULL;
    }
    let way = first_of(free);
    if !exchange(ways, way, 0, CLAIMED | tag) {
        return AGAIN;
    }
    if !with().is_power_of_two() {
        exchange(ways, way, CLAIMED | tag, 0);
        return AGAIN;
    }
    if let Some(slot) = T::flow_slots().get_ptr_mut(set * WAYS + way) {
        // SAFETY: a live element, which only the CPU that has claimed it writes.
        unsafe {
            (*slot).key.copy_from(key);
            ptr::copy_nonoverlapping(entry, &raw mut (*slot).entry, 1);
        }
    }
    exchange(ways, way, CLAIMED | tag, VALID | tag);
    OURS
}

#[inline(always)]
fn free<T: Tables>(key: *mut FlowKey<T::Addr>) -> u32 {
    // SAFETY: the kernel has checked the pointer.
    let Some((slot, tag)) = located::<T>(unsafe { &*key }) else {
        return 0;
    };
    let Some(ways) = T::flow_tags().get_ptr_mut(slot / WAYS) else {
        return 0;
    };
    exchange(ways, slot % WAYS, tag, 0) as u32
}

/// Stores `to` as a way's tag if the tag is `from`; `false` if it is another one. Orders memory for
/// all CPUs.
#[inline(always)]
fn exchange(ways: *mut Tags, way: u32, from: u32, to: u32) -> bool {
    let mut before = from;
    // SAFETY: a word of a live element.
    unsafe {
        let word = ways.cast::<u32>().add((way % WAYS) as usize);
        asm!("w0 = cmpxchg32_32({word} + 0, w0, {to})", word = in(reg) word, to = in(wreg) to, inout("w0") before);
    }
    before == from
}

/// Returns the ways whose tags have, in the bits of `mask`, the value `tag`: way `n` as bit `n`.
// VERIFIER: no branch, as a set would have as many paths as its ways have states.
#[inline(always)]
fn ways_with(ways: *const Tags, mask: u32, tag: u32) -> u32 {
    let mut others = 0;
    for n in 0..WAYS as usize {
        // SAFETY: a word of a live element.
        let word = unsafe { (&raw const (*ways)[n]).read_volatile() };
        let mut differs = ((word & mask) ^ tag) as u64;
        // SAFETY: a register only: the sign of a number that is 0 or negative.
        unsafe { asm!("{word} = -{word}", "{word} >>= 63", word = inout(reg) differs) };
        others |= differs << n;
    }
    others as u32 ^ ((1 << WAYS) - 1)
}

/// Returns the number of the lowest of the ways, of which there must be one.
// A look-up in two words: BPF has no instruction that counts zeros. The lowest bit times 0x17 has
// another value in its bits 5 to 7 for each way (a De Bruijn sequence).
#[inline(always)]
const fn first_of(ways: u32) -> u32 {
    let lowest = ways & ways.wrapping_neg();
    (0x5637_4210 >> (((lowest * 0x17) >> 5 & 7) * 4)) & (WAYS - 1)
}
