// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! Reports to `portolan trace`: whether the command wants events, and how events are handed to it.

use core::sync::atomic::AtomicU64;

use aya_ebpf::{bindings::__sk_buff, helpers::generated as helpers};
use proxy_common::trace::{Event, Filter, PacketEvent, lost};

use crate::object;

use super::{TRACE_EVENT, TRACE_FILTER, TRACE_LOST, TRACE_OUT, TRACE_RATE};

/// Until when `portolan trace` wants events, in nanoseconds of the monotonic clock; 0 while none
/// runs.
static UNTIL: AtomicU64 = AtomicU64::new(0);

/// Whether a `portolan trace` wants events. While none does, tracing costs only this load and a
/// branch, for packets of services only.
#[inline(always)]
pub fn is_on() -> bool {
    // SAFETY: an aligned word; the command replaces it as a whole.
    unsafe { UNTIL.as_ptr().read_volatile() != 0 }
}

/// Returns this CPU's event and the filter; None if events are no longer wanted. A command that was
/// killed could not clear `UNTIL`, so its time is checked here.
#[inline(always)]
pub fn begin() -> Option<(&'static mut PacketEvent, &'static Filter)> {
    // SAFETY: no arguments.
    let now = unsafe { helpers::bpf_ktime_get_ns() };
    // SAFETY: as in `is_on`.
    if now > unsafe { UNTIL.as_ptr().read_volatile() } {
        // SAFETY: a single store.
        unsafe { UNTIL.as_ptr().write_volatile(0) };
        return None;
    }
    let (event, filter) = (TRACE_EVENT.get_ptr_mut(0)?, TRACE_FILTER.get_ptr(0)?);
    // SAFETY: this CPU's own element, since programs at tc do not interrupt each other; and one
    // that the command writes before it says that it is there.
    let (event, filter) = unsafe { (&mut *event, &*filter) };
    event.event.time = now;
    Some((event, filter))
}

/// Hands the event to `portolan trace`, within the rate limit.
#[inline(always)]
pub fn hand_over(skb: *mut __sk_buff, event: &mut Event) {
    if let Some(rate) = TRACE_RATE.get_ptr_mut(0) {
        // SAFETY: plain numbers; if two CPUs change them at once, a few events more may pass.
        if !unsafe { &mut *rate }.takes(event.time) {
            return object::lose(&TRACE_LOST, lost::RATE);
        }
    }
    // SAFETY: the context is valid.
    unsafe { object::hand_over(skb.cast(), event, &TRACE_OUT, &TRACE_LOST, lost::UNREAD) };
}
