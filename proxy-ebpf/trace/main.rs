// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! The programs of `portolan trace`: the kernel runs one before and one after a program of the object `portolan`, as long as the
//! command holds their links. They read what that program was given and what it made of it, and change nothing. Decisions are in
//! `proxy_common::trace`.
#![no_std]
#![no_main]

mod call;
mod maps;
mod memory;
mod packet;

use aya_ebpf::{
    EbpfContext,
    macros::{fentry, fexit},
    programs::{FEntryContext, FExitContext},
};
use proxy_common::{
    Counter,
    trace::{Event, lost},
};

use self::maps::{Begun, COUNTERS, EVENTS, FILTER, LOST, RATE};

/// Before a program at an interface.
#[fentry]
pub fn packet_begins(ctx: FEntryContext) -> i32 {
    packet::begins(ctx.as_ptr());
    0
}

/// After it.
#[fexit]
pub fn packet_ends(ctx: FExitContext) -> i32 {
    packet::ends(ctx.as_ptr());
    0
}

/// Before a socket hook.
#[fentry]
pub fn call_begins(ctx: FEntryContext) -> i32 {
    call::begins(ctx.as_ptr());
    0
}

/// After it.
#[fexit]
pub fn call_ends(ctx: FExitContext) -> i32 {
    call::ends(ctx.as_ptr());
    0
}

/// How many counters there are.
const COUNTED: u32 = Counter::ALL.len() as u32;

/// Notes this CPU's counters.
#[inline(always)]
fn note_counters(begun: &mut Begun) {
    for n in 0..COUNTED {
        if let Some(count) = COUNTERS.get_ptr(n) {
            // SAFETY: this CPU's element.
            begun.counts[n as usize] = unsafe { *count } as u32;
        }
    }
}

/// Finds the counters that have changed since, as bits in `begun`.
#[inline(always)]
fn compare_counters(begun: &mut Begun) {
    memory::keep(&mut begun.changed, 0);
    for n in 0..COUNTED {
        if let Some(count) = COUNTERS.get_ptr(n) {
            // SAFETY: this CPU's element.
            let now = unsafe { *count } as u32;
            if now != begun.counts[n as usize] {
                let changed = memory::kept(&begun.changed);
                memory::keep(&mut begun.changed, changed | 1 << n);
            }
        }
    }
}

/// Hands a filled event to the reader, if it is wanted and within the limit.
#[inline(always)]
fn hand_over(event: &mut Event) {
    let Some(filter) = FILTER.get_ptr(0) else {
        return;
    };
    // SAFETY: the reader replaces it as a whole before programs are attached, and never later.
    let filter = unsafe { &*filter };
    event.sets = [0; 4];
    if filter.asks_sets != 0 {
        event.sets = [
            maps::sets_of(&event.before, true),
            maps::sets_of(&event.before, false),
            maps::sets_of(&event.after, true),
            maps::sets_of(&event.after, false),
        ];
    }
    if !filter.wants(event) {
        return;
    }
    event.time = memory::now();
    if let Some(rate) = RATE.get_ptr_mut(0) {
        // SAFETY: plain numbers; what two CPUs do at once is a few events more.
        if !unsafe { &mut *rate }.takes(event.time) {
            return lose(lost::RATE);
        }
    }
    if EVENTS.output(event, 0).is_err() {
        lose(lost::RING);
    }
}

/// Counts an event that the reader does not get.
#[inline(always)]
fn lose(why: u32) {
    if let Some(count) = LOST.get_ptr_mut(why) {
        // SAFETY: this CPU's element. A program that interrupts this one may make it count one too few.
        unsafe { *count += 1 };
    }
}

/// Whether the outcome is wanted at all: asked before anything else is read.
#[inline(always)]
fn wants_outcome(event: &Event) -> bool {
    // SAFETY: as above.
    FILTER
        .get_ptr(0)
        .is_some_and(|filter| unsafe { &*filter }.wants_outcome(event))
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}

#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
