// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! Reports a packet to `portolan trace` once its outcome is known: the packet as it came, from the
//! workspace, and the packet as it is now, from its bytes.

use core::arch::asm;

use aya_ebpf::helpers::generated as kernel;
use proxy_common::{
    Addr, Counter, FlowKind,
    trace::{Event, HEAD, Hook, Tuple, head},
};

use crate::{
    count::Outcome,
    family::Family,
    globals,
    maps::{flow, trace, workspace::Scratch},
    packet::{Packet, Shape, Skb},
};

/// What the report says about where the packet was seen, in one word: the hook, whether the packet
/// begins with an Ethernet header, and whether the workspace has the parsed packet.
#[derive(Clone, Copy)]
pub struct Location(u32);

impl Location {
    const LINK_LAYER: u32 = 1 << 8;
    const UNKNOWN: u32 = 1 << 9;
    /// Position in the word of the packet's path: see [`Event::result`].
    const PATH: u32 = 16;

    #[inline(always)]
    pub const fn new(hook: Hook, link_layer: bool) -> Self {
        Self(hook as u32 | if link_layer { Self::LINK_LAYER } else { 0 })
    }
    /// The same location of a packet that was not parsed.
    #[inline(always)]
    pub const fn unknown(self) -> Self {
        Self(self.0 | Self::UNKNOWN)
    }
}

/// Reports the packet with this outcome, if `portolan trace` wants events.
#[inline(always)]
pub fn packet<F: Family>(skb: Skb, outcome: Outcome, place: Location) {
    if trace::is_on() {
        let path = if outcome.is_redirected() {
            Event::PAST_THE_STACK
        } else if globals::redirects() && skb.tag().asks() {
            Event::ASKS_THE_STACK
        } else {
            0
        };
        told::<F>(
            skb,
            outcome.counter(),
            place.0 | (path as u32) << Location::PATH,
        );
    }
}

// Called by entry points only, so that it has enough stack.

by_family! {
    /// See [`packet`].
    fn told(skb, counter, place) = portolan_trace_v4 portolan_trace_v6 of tell
}

#[inline(always)]
fn tell<F: Family>(skb: Skb, counter: u32, place: u32) -> u32 {
    let Some((told, filter)) = trace::begin() else {
        return 0;
    };
    let event = &mut told.event;
    event.outcome = counter;
    if !filter.wants_outcome(event) {
        return 0;
    }
    (event.service, event.backend) = (0, 0);
    event.hook = place as u8;
    event.interface = skb.interface();
    event.length = skb.len();
    event.result = (place >> Location::PATH) as i32;
    (event.process, event.cookie) = (0, 0);
    event.command = [0; 16];
    (event.namespace, event.head) = (0, 0);
    read_now(
        skb,
        event,
        &mut told.bytes,
        place & Location::LINK_LAYER != 0,
    );
    if place & Location::UNKNOWN != 0 {
        copy(&mut event.before, &event.after);
    } else if let Some((packet, _, scratch)) = flow::filled_workspace::<F>() {
        before::<F>(packet, &mut event.before);
        flow_of::<F>(packet, scratch, event);
    }
    if filter.wants(event) {
        trace::hand_over(skb.raw(), event);
    }
    0
}

/// Reads the packet's first bytes as they are now, into `bytes`, and its addresses and ports into
/// the event.
#[inline(always)]
fn read_now(skb: Skb, event: &mut Event, bytes: &mut [u8; HEAD], link_layer: bool) {
    let len = event.length;
    let len = if len > HEAD as u32 { HEAD as u32 } else { len };
    if len > 0 {
        const _: () = assert!(HEAD == 256, "the mask below");
        let mut last = (len - 1) as u64;
        // VERIFIER: Linux 6.1 does not learn from the comparison that the length is not 0; and the
        // compiler would omit a mask written in Rust.
        // SAFETY: plain arithmetic on a register.
        unsafe { asm!("{last} &= 0xff", last = inout(reg) last) };
        let len = last as u32 + 1;
        // SAFETY: the context is valid, and `bytes` has space for so many bytes.
        let failed = unsafe {
            kernel::bpf_skb_load_bytes(skb.raw().cast(), 0, bytes.as_mut_ptr().cast(), len)
        };
        if failed == 0 {
            event.head = len as u16;
        }
    }
    head::parse(
        bytes,
        event.head as u32,
        link_layer,
        &mut event.after,
        &mut event.work,
    );
}

/// Fills in the addresses and ports that the packet came with.
#[inline(always)]
fn before<F: Family>(packet: &Packet<F::Addr>, tuple: &mut Tuple) {
    let key = &packet.key;
    (tuple.src, tuple.dst) = (key.src.widened(), key.dst.widened());
    (tuple.src_port, tuple.dst_port) = (key.src_port, key.dst_port);
    (tuple.protocol, tuple.family) = (key.protocol, F::VERSION as u8);
    (tuple.signals, tuple.kind) = (packet.signals.0, 0);
    match packet.shape {
        Shape::LaterFragment => tuple.kind = Tuple::LATER_FRAGMENT,
        Shape::Icmp => tuple.signals = packet.icmp_type,
        Shape::Whole | Shape::FirstFragment => {}
    }
}

/// Fills in the service port and the backend: of the flow that the packet belongs to, or the
/// service port of the record that refuses it.
#[inline(always)]
fn flow_of<F: Family>(packet: &Packet<F::Addr>, scratch: &mut Scratch<F::Addr>, event: &mut Event) {
    event.service = scratch.service.0;
    if let Some(found) = flow::find::<F>(&packet.key, &mut scratch.other) {
        let entry = found.entry;
        (event.service, event.backend) = (entry.service.0, entry.backend.0);
        // The last packet of a flow: egress has overwritten the key in the workspace with the key
        // of the flow's other direction.
        if event.outcome == Counter::ReplyTranslated as u32 && entry.kind == FlowKind::ORIGINAL {
            event.before.dst = event.before.src;
            event.before.dst_port = event.before.src_port;
            event.before.src = entry.address.widened();
            event.before.src_port = entry.port;
        }
        return;
    }
    scratch.key.assign_reversed(&packet.key);
    if let Some(found) = flow::find::<F>(&scratch.key, &mut scratch.other) {
        (event.service, event.backend) = (found.entry.service.0, found.entry.backend.0);
    }
}

/// Copies by words: an assignment would become a call, which copies byte by byte.
#[inline(always)]
fn copy(to: &mut Tuple, from: &Tuple) {
    (to.src, to.dst) = (from.src, from.dst);
    (to.src_port, to.dst_port) = (from.src_port, from.dst_port);
    (to.protocol, to.family) = (from.protocol, from.family);
    (to.signals, to.kind) = (from.signals, from.kind);
}
