// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! A packet before and after a program at an interface. Neither interrupts the other on one CPU, so the one that begins is the one that
//! ends.

use core::ffi::c_void;

use proxy_common::trace::{Event, HEAD, Target, Tuple, head};

use crate::{
    compare_counters, hand_over,
    maps::{BEGUN, EVENT, HEADS, target},
    memory, note_counters, wants_outcome,
};

/// Reads the first bytes of the packet; what is behind its linear part is left out. Returns how many they are, and the packet's length.
#[inline(always)]
fn read_head(skb: u64, target: &Target, to: *mut [u8; HEAD]) -> (u32, u32) {
    let len: u32 = memory::read(skb, target.skb_len);
    let beyond: u32 = memory::read(skb, target.skb_data_len);
    let data: u64 = memory::read(skb, target.skb_data);
    (memory::copy(to, data, len.wrapping_sub(beyond)), len)
}

#[inline(always)]
pub fn begins(ctx: *mut c_void) {
    let (Some(begun), Some(bytes), Some(target)) =
        (BEGUN.get_ptr_mut(0), HEADS.get_ptr_mut(0), target())
    else {
        return;
    };
    // SAFETY: this CPU's elements.
    let (begun, bytes) = unsafe { (&mut *begun, &mut *bytes) };
    let skb = memory::argument(ctx);
    (begun.head, begun.length) = read_head(skb, target, bytes);
    begun.mark = memory::read(skb, target.skb_mark);
    head::parse(bytes, begun.head, target.link_layer != 0, &mut begun.before);
    note_counters(begun);
    begun.valid = 1;
}

#[inline(always)]
pub fn ends(ctx: *mut c_void) {
    let (Some(begun), Some(bytes), Some(event), Some(target)) = (
        BEGUN.get_ptr_mut(0),
        HEADS.get_ptr_mut(0),
        EVENT.get_ptr_mut(0),
        target(),
    ) else {
        return;
    };
    // SAFETY: this CPU's elements.
    let (begun, bytes, event) = unsafe { (&mut *begun, &mut *bytes, &mut *event) };
    // Its beginning was not seen.
    if begun.valid == 0 {
        return;
    }
    begun.valid = 0;
    event.hook = target.hook as u8;
    compare_counters(begun);
    event.outcome = Event::UNCOUNTED;
    event.flags = if target.link_layer != 0 {
        Event::LINK_LAYER
    } else {
        0
    };
    for n in 0..crate::COUNTED {
        if memory::kept(&begun.changed) >> n & 1 != 0 {
            event.outcome = n;
        }
    }
    if !wants_outcome(event) {
        return;
    }
    let skb = memory::argument(ctx);
    let (head, length) = read_head(skb, target, &mut event.bytes_after);
    head::parse(
        &event.bytes_after,
        head,
        target.link_layer != 0,
        &mut event.after,
    );
    event.head_after = head as u16;
    event.length_after = length;
    event.mark_after = memory::read(skb, target.skb_mark);
    event.interface = memory::read(memory::read(skb, target.skb_dev), target.dev_ifindex);
    copy_tuple(&mut event.before, &begun.before);
    event.head_before = begun.head as u16;
    event.length_before = begun.length;
    event.mark_before = begun.mark;
    event.action = memory::returned(ctx);
    (event.process, event.cgroup, event.cookie) = (0, 0, 0);
    event.command = [0; 16];
    memory::copy(&mut event.bytes_before, bytes.as_ptr() as u64, HEAD as u32);
    hand_over(event);
}

/// By words: an assignment would become a call, which copies byte by byte.
#[inline(always)]
pub fn copy_tuple(to: &mut Tuple, from: &Tuple) {
    (to.src, to.dst) = (from.src, from.dst);
    (to.src_port, to.dst_port) = (from.src_port, from.dst_port);
    (to.protocol, to.family) = (from.protocol, from.family);
    (to.signals, to.kind) = (from.signals, from.kind);
}
