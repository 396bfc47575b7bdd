// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! Makes room for an entry whose two sets are full: of the flows that have an entry there and give
//! way (`FlowState::gives_way`), the one goes that has been silent for longest, but closed ones
//! first, and for a connection half-open ones before datagrams. So short connections and floods
//! make room for themselves, whatever packets arrive and even with no agent running.

use proxy_common::{
    Counter, FlowKey, FlowKind, FlowState, Protocol,
    flow::{REFRESH_INTERVAL, places::WAYS},
};

use crate::{
    count, helpers,
    maps::{
        flow::{self, Claim, Found},
        slots,
        tables::Tables,
        workspace::Scratch,
    },
};

/// An eviction sooner than this after the last packet of a flow counts as early, in nanoseconds.
/// This is the shortest time-out that conntrack has for a flow that begins.
const EARLY: u64 = 30_000_000_000;
/// How long an entry of replies without an original entry may belong to a flow that another CPU is
/// just making, in nanoseconds.
pub const YOUTH: u64 = 2 * REFRESH_INTERVAL;

/// A flow that has been silent for less than this may be in the middle of its handshake: entries of
/// replies are looked at as well, of which many may belong to flows that ended long ago. In
/// nanoseconds.
const PAUSE: u64 = 250_000_000;

/// Enters `scratch.entry` unless its key is there already. In full sets, a flow that gives way goes
/// first. `scratch` belongs to the workspace of attached programs; see [`make`].
#[inline(always)]
pub fn enter<T: Tables>(key: &FlowKey<T::Addr>, scratch: &mut Scratch<T::Addr>) -> Claim {
    match flow::claim::<T>(key, &scratch.entry) {
        Claim::Full => {
            make::<T>(key, scratch);
            flow::claim::<T>(key, &scratch.entry)
        }
        claim => claim,
    }
}

/// Evicts a flow that stands in the way of an entry with this key. Of `scratch`, which belongs to
/// the workspace of attached programs, `found`, `other`, `holder`, `reply` and `original` are
/// overwritten.
#[inline(always)]
pub fn make<T: Tables>(key: *const FlowKey<T::Addr>, scratch: &mut Scratch<T::Addr>) {
    evict::<T>(key.cast_mut());
    // The call has changed the scratch.
    helpers::reread(scratch);
}

by_family! {
    /// See [`make`].
    fn evict(key: FlowKey) = portolan_evict_v4 portolan_evict_v6 of evict_oldest
}

/// Of the flows of one kind that give way, the one that has been silent for longest.
#[derive(Clone, Copy)]
struct Oldest {
    slot: u32,
    /// In nanoseconds, at least 1; 0: none has been found.
    age: u64,
}

impl Oldest {
    const NONE: Self = Self { slot: 0, age: 0 };
    #[inline(always)]
    fn or(&mut self, slot: u32, age: u64) {
        if age > self.age {
            (self.slot, self.age) = (slot, age);
        }
    }
}

/// The search for the flow that goes.
struct Search<'a, T: Tables> {
    scratch: &'a mut Scratch<T::Addr>,
    sets: [u32; 2],
    now: u64,
    /// Whether entries of replies are looked at, too.
    replies: bool,
    closed: Oldest,
    half_open: Oldest,
    datagrams: Oldest,
}

#[inline(always)]
fn evict_oldest<T: Tables>(key: *mut FlowKey<T::Addr>) -> u32 {
    let Some((.., scratch)) = flow::filled_workspace::<T>() else {
        return 0;
    };
    // SAFETY: the kernel has checked the pointer.
    let (sets, protocol) = unsafe { (slots::places_of(&*key).sets, (*key).protocol) };
    let mut search = Search::<T> {
        sets,
        scratch,
        now: helpers::now(),
        replies: false,
        closed: Oldest::NONE,
        half_open: Oldest::NONE,
        datagrams: Oldest::NONE,
    };
    helpers::repeat(2 * WAYS, &mut search, look_at::<T>);
    if search.closed.age == 0 && first_of(&search, protocol).age < PAUSE {
        search.replies = true;
        helpers::repeat(2 * WAYS, &mut search, look_at::<T>);
    }
    let Oldest { slot, age } = first_of(&search, protocol);
    if age == 0 {
        return 0;
    }
    remove_from::<T>(&mut search, slot)
}

/// Returns the flow that goes for an entry of this protocol; its age is 0 if none gives way.
#[inline(always)]
fn first_of<T: Tables>(search: &Search<'_, T>, protocol: Protocol) -> Oldest {
    let Search {
        closed,
        half_open,
        datagrams,
        ..
    } = search;
    if closed.age != 0 {
        *closed
    } else if half_open.age != 0 && (protocol != Protocol::UDP || half_open.age >= datagrams.age) {
        *half_open
    } else {
        *datagrams
    }
}

extern "C" fn look_at<T: Tables>(n: u64, search: &mut Search<'_, T>) -> u64 {
    let n = n as u32;
    let set = if n < WAYS {
        search.sets[0]
    } else {
        search.sets[1]
    };
    let slot = set * WAYS + n % WAYS;
    let Some(element) = T::flow_slots().get_ptr_mut(slot) else {
        return 0;
    };
    // SAFETY: a live element. What is torn is seen when the flow is removed.
    let (kind, protocol, mut state, mut seen) = unsafe {
        let entry = &raw const (*element).entry;
        (
            (*entry).kind,
            (*element).key.protocol,
            (*entry).state,
            (*entry).last_seen,
        )
    };
    let is_own = kind == FlowKind::ORIGINAL || kind == FlowKind::UNTOUCHED;
    if is_own == search.replies {
        return 0;
    }
    if !is_own {
        // The state is in the original entry; replies without one are closed.
        let whose = whose::<T>(search, slot);
        if whose == NOBODYS {
            state = FlowState::RESET;
        } else if whose == FLOWS {
            // SAFETY: found just now.
            let original = unsafe { search.scratch.found.assume_init_ref() };
            (state, seen) = (original.state, original.last_seen);
        } else {
            return 0;
        }
    }
    if !state.gives_way() {
        return 0;
    }
    let age = search.now.saturating_sub(seen) + 1;
    if state.is_closed() {
        search.closed.or(slot, age);
    } else if protocol == Protocol::UDP {
        search.datagrams.or(slot, age);
    } else {
        search.half_open.or(slot, age);
    }
    0
}

/// What an entry belongs to: to the flow whose original entry is in `scratch.found`, under
/// `scratch.original`; to no flow; or to one that another CPU may be making or removing.
const FLOWS: u32 = 0;
const NOBODYS: u32 = 1;
const UNKNOWN: u32 = 2;

/// Returns to what the entry in this slot belongs; leaves its key in `scratch.holder`.
#[inline(never)]
fn whose<T: Tables>(search: &mut Search<'_, T>, slot: u32) -> u32 {
    let Scratch {
        found,
        other,
        holder,
        reply,
        original,
        ..
    } = &mut *search.scratch;
    let Some(element) = T::flow_slots().get_ptr_mut(slot) else {
        return UNKNOWN;
    };
    // SAFETY: a live element; a torn key finds no entry.
    holder.copy_from(unsafe { &(*element).key });
    let Some(Found { entry, .. }) = flow::find::<T>(holder, found) else {
        return UNKNOWN;
    };
    let alone = if search.now.saturating_sub(entry.last_seen) > YOUTH {
        NOBODYS
    } else {
        UNKNOWN
    };
    match entry.kind {
        FlowKind::ORIGINAL => {
            original.copy_from(holder);
            return FLOWS;
        }
        FlowKind::UNTOUCHED if entry.state.gives_way() => return NOBODYS,
        FlowKind::UNTOUCHED => return UNKNOWN,
        FlowKind::REPLY => {
            reply.copy_from(holder);
            entry.original_key_into(holder, original);
        }
        _ => {
            let (src, port) = (&holder.src, holder.src_port);
            reply.assign(src, port, &entry.address, entry.port, holder.protocol);
            match flow::find::<T>(reply, other) {
                Some(Found { entry, .. })
                    if entry.kind == FlowKind::REPLY && entry.is_masqueraded_by(reply, holder) =>
                {
                    entry.original_key_into(reply, original);
                }
                _ => return alone,
            }
        }
    }
    match flow::find::<T>(original, found) {
        Some(Found { entry, .. })
            if entry.kind == FlowKind::ORIGINAL && entry.is_replied_by(original, reply) =>
        {
            FLOWS
        }
        _ => alone,
    }
}

/// Removes the flow of the entry in this slot if it still gives way, or the entry if it belongs to
/// no flow. The returned 0 has no meaning.
#[inline(never)]
fn remove_from<T: Tables>(search: &mut Search<'_, T>, slot: u32) -> u32 {
    let whose = whose::<T>(search, slot);
    let Scratch {
        found,
        other,
        holder,
        reply,
        original,
        ..
    } = &mut *search.scratch;
    if whose == UNKNOWN {
        return 0;
    }
    // SAFETY: found just now.
    let entry = unsafe { found.assume_init_ref() };
    if whose == FLOWS && !entry.state.gives_way() {
        return 0;
    }
    let is_late = search.now.saturating_sub(entry.last_seen) >= EARLY;
    if whose == FLOWS && !is_late && !entry.state.is_closed() {
        count::one(Counter::FlowEvictedEarly as u32);
    }
    if whose == NOBODYS {
        flow::remove::<T>(holder);
    } else {
        flow::remove_entries::<T>(original, found, other, reply, holder);
    }
    0
}
