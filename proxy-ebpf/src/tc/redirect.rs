// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! `forwarding: redirect`: a packet that ingress forwards leaves at once, by the kernel's routes and neighbours, past the
//! node's stack and its netfilter rules. Egress of the interface that it leaves by translates as ever.
//!
//! The stack handles the rest: packets whose hop limit ends, packets that are too large, packets for the node itself,
//! packets that are not for this node, fragments, IPv4 options and IPv6 extension headers, addresses that the stack drops or
//! that are the node's own, and interfaces without a link layer or without the agent's permission.

use aya_ebpf::bindings::{TC_ACT_SHOT, bpf_fib_lookup};
use proxy_common::maps::interface;

use super::is_receiver;
use crate::{
    count::{Outcome, PASS},
    family::Family,
    globals,
    maps::node,
    packet::{
        Skb,
        fib::{self, FibResult},
        headers::{ETHERNET_LEN, ETHERTYPE},
    },
};

/// Redirects a packet that ingress forwards, where the setting asks for it.
// VERIFIER: does not get the IP header's offset. The programs would be verified once for every value that it can have.
#[inline(always)]
pub fn forward<F: Family>(skb: Skb, outcome: Outcome) -> Outcome {
    if globals::redirects() && outcome.is_forwarded() {
        outcome.with_action(leave::<F>(skb))
    } else {
        outcome
    }
}

/// The action that makes the packet leave, or leaves it to the stack.
#[inline(never)]
fn leave<F: Family>(skb: Skb) -> i32 {
    // A VLAN tag, in or out of band, would go along to an interface where it means something else.
    let l3 = ETHERNET_LEN;
    let known = node::interface_word(skb.interface());
    let bits = interface::bits(known);
    if bits & interface::REDIRECTS == 0
        || skb.read(ETHERTYPE) != Some(F::ETHERTYPE)
        || skb.is_tagged()
        || !is_receiver(skb, || bits & interface::VETH_PORT != 0)
    {
        return PASS;
    }
    // SAFETY: numbers and arrays of them.
    let mut route = unsafe { fib::zeroed::<bpf_fib_lookup>() };
    // To the stack, a packet that comes in by a bridge's port comes in by the bridge.
    route.ifindex = match interface::bridge(known) {
        0 => skb.interface(),
        bridge => bridge,
    };
    let Some(counted_down) = F::fib_parameters(skb, l3, &mut route) else {
        return PASS;
    };
    // An interface without a link layer needs the route itself, which only the stack has.
    let has_link_layer = match fib::look_up(skb, &mut route) {
        FibResult::Found => fib::has_address(&route),
        FibResult::NoNeighbour => node::interface(route.ifindex) & interface::NO_LINK_LAYER == 0,
        FibResult::NotForwarded => false,
    };
    if !has_link_layer {
        return PASS;
    }
    if F::store_hop(skb, l3, counted_down).is_err() {
        return TC_ACT_SHOT;
    }
    // By the next hop's IP address: the kernel resolves it where it does not know it, and again when it is old.
    fib::redirect(&route)
}
