// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! Next hops that each CPU caches for itself: a look-up in the kernel's routes for every packet
//! would take longer than all other work. A next hop is trusted for one second, and only while the
//! agent has seen no change of routes or neighbours. So no next hop is stale for long even without
//! an agent. Called by `forward`.

use aya_ebpf::bindings::bpf_fib_lookup;
use proxy_common::{
    Addr, FlowKey,
    maps::NEXT_HOP_SLOTS,
    xdp::{self, Exit, Freshness, freshness},
};

use crate::{
    family::Family,
    helpers,
    maps::{
        next_hop::{Destination, NextHop},
        node,
    },
    packet::{
        Frame, Plain,
        fib::{self, FibResult},
    },
};

/// One of this many packets whose next hop is not cached is left to the stack. Without that, two
/// destinations that take turns in a slot would never age, and the stack would see none of their
/// packets.
const SEEN_BY_STACK: u32 = 256;

/// Returns the next hop of a packet to its new destination, from the cache or newly looked up;
/// `None` if this packet must go through the stack.
#[inline(always)]
pub fn of<F: Family>(
    frame: Frame,
    packet: &Plain<F::Addr>,
    ends: &FlowKey<F::Addr>,
    now: u64,
    route: &mut bpf_fib_lookup,
) -> Option<&'static NextHop<F::Addr>> {
    let destination = Destination {
        address: ends.dst,
        interface: frame.interface(),
        epoch: node::route_epoch(),
    };
    let slot = ends.dst.mix(ends.dst, 0x2545_f491);
    let slot = (slot ^ slot >> 32) as u32 % NEXT_HOP_SLOTS;
    let hop = F::next_hops().get_ptr_mut(slot)?;
    // SAFETY: this CPU's own element; programs at XDP do not interrupt each other.
    let hop = unsafe { &mut *hop };
    let freshness = freshness(hop.destination == destination, hop.filled, now);
    if freshness != Freshness::Fresh {
        renew::<F>(frame, packet, ends, hop, route);
        hop.destination = destination;
        hop.filled = now;
        if freshness == Freshness::Aged || helpers::random().is_multiple_of(SEEN_BY_STACK) {
            return None;
        }
    }
    let is_for_us = frame.receiver()? == (hop.own_high, hop.own_low);
    if hop.exit == Exit::Stack as u32 || packet.length > hop.mtu as u32 || !is_for_us {
        return None;
    }
    Some(hop)
}

/// Looks the next hop up in the kernel's routes and writes it into `hop`; `hop.exit` stays `Stack`
/// if none is found. The returned 0 has no meaning.
// VERIFIER: the look-up's parameters are in the caller's buffer `route`: on the stack they would be
// too much for Linux 6.1.
#[inline(never)]
fn renew<F: Family>(
    frame: Frame,
    packet: &Plain<F::Addr>,
    ends: &FlowKey<F::Addr>,
    hop: &mut NextHop<F::Addr>,
    route: &mut bpf_fib_lookup,
) -> u32 {
    hop.exit = Exit::Stack as u32;
    let ingress = node::uplink(frame.interface());
    (hop.own_high, hop.own_low) = ingress.address();
    fib::clear(route);
    route.ifindex = frame.interface();
    route.l4_protocol = packet.protocol.0;
    route.sport = ends.src_port.0;
    route.dport = ends.dst_port.0;
    F::fib_of(packet, ends, route);
    // The look-up gets no length. So it returns the MTU in the same field, for every packet.
    if fib::look_up_frame(frame, route) != FibResult::Found || !fib::has_address(route) {
        return 0;
    }
    let is_same = route.ifindex == frame.interface();
    let egress = if is_same {
        ingress
    } else {
        node::uplink(route.ifindex)
    };
    hop.exit = xdp::exit(ingress, egress, is_same) as u32;
    hop.mtu = fib::mtu(route);
    hop.addresses = fib::link_layer(route);
    hop.egress = route.ifindex;
    0
}
