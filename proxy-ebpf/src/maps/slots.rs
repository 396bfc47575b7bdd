// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! The slots of the flow table: finds, enters and removes an entry. Where a key's slot is:
//! `proxy_common::flow::places`. Called by `flow`.

use core::{arch::asm, ptr};

use proxy_common::{
    Addr, FlowEntry, FlowKey,
    flow::places::{CLAIMED, FlowSlot, HASHED, Places, Tags, VALID, WAYS},
};

use crate::{globals, helpers, maps::tables::Tables};

/// How often a way is tried for an entry, while another CPU is writing an entry with the same hash
/// or has claimed a way for one at the same moment: for about as long as it writes one.
// VERIFIER: it follows all combinations of the tries' ends.
const CLAIMS: u32 = 3;
/// What [`enter`] returns. `TAKEN`: the key has an entry, or one with the same hash stands in its
/// sets. `FULL`: its two sets have no free way.
pub const OURS: u32 = 0;
pub const TAKEN: u32 = 1;
pub const FULL: u32 = 2;

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
    key.places(globals::FLOW_SETS.load(), globals::HASH_KEY.load())
}

#[inline(always)]
fn copy_found<T: Tables>(key: *mut FlowKey<T::Addr>, entry: *mut FlowEntry<T::Addr>) -> u32 {
    // SAFETY: the kernel has checked both pointers.
    let key = unsafe { &*key };
    let number = located::<T>(key).map_or(0, |(slot, _)| slot + 1);
    let Some(element) = element::<T>(number) else {
        return 0;
    };
    // Once more, as another CPU may have been amending the entry.
    for _ in 0..2 {
        // SAFETY: both are valid for an entry; every bit pattern is a valid one.
        let copied = unsafe {
            ptr::copy_nonoverlapping(helpers::reread(element), entry, 1);
            &*helpers::reread(entry)
        };
        if copied.is_whole(key) {
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
    let way = way_of(T::flow_tags().get_ptr_mut(set)?, tag);
    if way >= WAYS {
        return None;
    }
    let number = set * WAYS + way;
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
    for _ in 0..CLAIMS {
        if ways_with(first, tag) + ways_with(second, tag) != 0 {
            if way_of(first, VALID | tag) < WAYS || way_of(second, VALID | tag) < WAYS {
                return TAKEN;
            }
            continue;
        }
        let (set, ways) = if ways_with(second, 0) > ways_with(first, 0) {
            (sets[1], second)
        } else {
            (sets[0], first)
        };
        let way = way_of(ways, 0);
        if way >= WAYS {
            return FULL;
        }
        if !exchange(ways, way, 0, CLAIMED | tag) {
            continue;
        }
        if ways_with(first, tag) + ways_with(second, tag) != 1 {
            exchange(ways, way, CLAIMED | tag, 0);
            continue;
        }
        if let Some(slot) = T::flow_slots().get_ptr_mut(set * WAYS + way) {
            // SAFETY: a live element, which only the CPU that has claimed it writes.
            unsafe {
                (*slot).key.copy_from(key);
                ptr::copy_nonoverlapping(entry, &raw mut (*slot).entry, 1);
            }
        }
        exchange(ways, way, CLAIMED | tag, VALID | tag);
        return OURS;
    }
    TAKEN
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

/// Returns the first way that has this tag, or [`WAYS`].
#[inline(always)]
fn way_of(ways: *const Tags, tag: u32) -> u32 {
    let mut way = WAYS as u64;
    for n in (0..WAYS as usize).rev() {
        // SAFETY: a word of a live element.
        let word = unsafe { (&raw const (*ways)[n]).read_volatile() };
        let differs = differ(word, tag);
        // SAFETY: registers only. `n` if the words are equal, else as before.
        unsafe {
            asm!("{way} -= {n}", "{way} *= {differs}", "{way} += {n}",
                way = inout(reg) way, n = in(reg) n as u64, differs = in(reg) differs);
        }
    }
    way as u32
}

/// Returns how many ways have this hash, whether their entries are complete or not.
#[inline(always)]
fn ways_with(ways: *const Tags, tag: u32) -> u32 {
    let mut others = 0;
    for n in 0..WAYS as usize {
        // SAFETY: a word of a live element.
        let word = unsafe { (&raw const (*ways)[n]).read_volatile() };
        others += differ(word & HASHED, tag);
    }
    WAYS - others as u32
}

/// Returns 1 if two words differ, else 0.
// VERIFIER: no branch, as a set would have as many paths as its ways have states.
#[inline(always)]
fn differ(one: u32, other: u32) -> u64 {
    let mut word = (one ^ other) as u64;
    // SAFETY: a register only: the sign of a number that is 0 or negative.
    unsafe { asm!("{word} = -{word}", "{word} >>= 63", word = inout(reg) word) };
    word
}
