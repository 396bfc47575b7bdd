// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! Makes room for an entry whose two sets are full: of the flows that have an entry there and give
//! way (`FlowState::gives_way`), the one that has been silent for longest is removed. So half-open
//! and closed flows fill the table, whatever packets arrive and even with no agent running, but
//! never keep out a new one.

use proxy_common::{
    Counter, FlowKind,
    flow::{REFRESH_INTERVAL, places::WAYS},
};

use crate::{
    count, helpers,
    maps::{
        flow::{self, Found},
        slots,
        tables::Tables,
        workspace::{Scratch, Workspace},
    },
};

/// An eviction sooner than this after the last packet of a flow counts as early, in nanoseconds.
/// This is the shortest time-out that conntrack has for a flow that begins.
const EARLY: u64 = 30_000_000_000;
/// How long an entry of replies without an original entry may belong to a flow that another CPU is
/// just making, in nanoseconds.
pub const YOUTH: u64 = 2 * REFRESH_INTERVAL;

/// Evicts a flow that stands in the way of an entry with `scratch.key`. `scratch` belongs to the
/// workspace of attached programs; `found`, `other`, `holder`, `reply` and `original` are
/// overwritten.
#[inline(always)]
pub fn make<T: Tables>(scratch: &mut Scratch<T::Addr>) {
    evict::<T>();
    // The call has changed the scratch.
    helpers::reread(scratch);
}

by_family! {
    /// See [`make`].
    fn evict() = portolan_evict_v4 portolan_evict_v6 of evict_oldest
}

/// The search for the oldest of the flows that give way.
struct Search<'a, T: Tables> {
    scratch: &'a mut Scratch<T::Addr>,
    sets: [u32; 2],
    /// Whether entries of replies are looked at, too.
    replies: bool,
    now: u64,
    /// The greatest age, see [`age_of`], and its slot.
    age: u64,
    slot: u32,
}

#[inline(always)]
fn evict_oldest<T: Tables>() -> u32 {
    let Some(Workspace { scratch, .. }) = flow::filled_workspace::<T>() else {
        return 0;
    };
    let mut search = Search::<T> {
        sets: slots::places_of(&scratch.key).sets,
        scratch,
        replies: false,
        now: helpers::now(),
        age: 0,
        slot: 0,
    };
    helpers::repeat(2 * WAYS, &mut search, look_at::<T>);
    if search.age == 0 {
        search.replies = true;
        helpers::repeat(2 * WAYS, &mut search, look_at::<T>);
    }
    if search.age == 0 {
        return 0;
    }
    let slot = search.slot;
    remove_from::<T>(&mut search, slot)
}

extern "C" fn look_at<T: Tables>(n: u64, search: &mut Search<'_, T>) -> u64 {
    let n = n as u32;
    let set = if n < WAYS {
        search.sets[0]
    } else {
        search.sets[1]
    };
    let slot = set * WAYS + n % WAYS;
    let age = age_of::<T>(search, slot);
    if age > search.age {
        (search.age, search.slot) = (age, slot);
    }
    0
}

/// Returns how long the flow of the entry in this slot has been silent, in nanoseconds, or 0 if it
/// does not give way. Leaves the slot's key in `scratch.holder`, and the flow's original entry in
/// `found` and `original`, if it has one.
#[inline(never)]
fn age_of<T: Tables>(search: &mut Search<'_, T>, slot: u32) -> u64 {
    let Scratch {
        found,
        other,
        holder,
        reply,
        original,
        ..
    } = &mut *search.scratch;
    let Some(element) = T::flow_slots().get_ptr_mut(slot) else {
        return 0;
    };
    // SAFETY: a live element; a torn key finds no flow.
    let kind = unsafe {
        holder.copy_from(&(*element).key);
        (*element).entry.kind
    };
    let is_own = kind == FlowKind::ORIGINAL || kind == FlowKind::UNTOUCHED;
    if is_own == search.replies {
        return 0;
    }
    let Some(Found { entry, .. }) = flow::find::<T>(holder, found) else {
        return 0;
    };
    let silent = |seen: u64| search.now.saturating_sub(seen) + 1;
    let seen = entry.last_seen;
    if is_own {
        original.copy_from(holder);
        return if entry.state.gives_way() {
            silent(seen)
        } else {
            0
        };
    }
    // An entry of replies whose flow has gone.
    let orphan = if silent(seen) > YOUTH {
        silent(seen)
    } else {
        0
    };
    if entry.kind == FlowKind::REPLY {
        entry.original_key_into(holder, original);
    } else {
        reply.assign(
            &holder.src,
            holder.src_port,
            &entry.address,
            entry.port,
            holder.protocol,
        );
        match flow::find::<T>(reply, other) {
            Some(Found { entry, .. })
                if entry.kind == FlowKind::REPLY && entry.is_masqueraded_by(reply, holder) =>
            {
                entry.original_key_into(reply, original);
            }
            _ => return orphan,
        }
    }
    match flow::find::<T>(original, found) {
        Some(Found { entry, .. }) if entry.kind == FlowKind::ORIGINAL => {
            if entry.state.gives_way() {
                silent(entry.last_seen)
            } else {
                0
            }
        }
        _ => orphan,
    }
}

/// Removes the flow of the entry in this slot if it still gives way, or the entry if it belongs to
/// no flow. The returned 0 has no meaning.
#[inline(never)]
fn remove_from<T: Tables>(search: &mut Search<'_, T>, slot: u32) -> u32 {
    if age_of::<T>(search, slot) == 0 {
        return 0;
    }
    let Scratch {
        found,
        other,
        holder,
        reply,
        original,
        ..
    } = &mut *search.scratch;
    match flow::find::<T>(original, found) {
        Some(Found { entry, .. }) if entry.kind == FlowKind::ORIGINAL => {
            let age = search.now.saturating_sub(entry.last_seen);
            if !entry.state.is_closed() && age < EARLY {
                count::one(Counter::FlowEvictedEarly as u32);
            }
            flow::remove_entries::<T>(original, found, other, reply, holder);
        }
        _ => _ = flow::remove::<T>(holder),
    }
    0
}
