// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! `forwarding: redirect`: what ingress is done with leaves at once, by the kernel's routes and neighbours, past
//! the node's stack and its netfilter rules. Egress of where it leaves does its part as ever.
//!
//! The stack keeps what needs more than that: packets that have expired or are too large, what is for the node
//! itself or not for this node, devices without a link layer.

use aya_ebpf::{
    Global,
    bindings::{TC_ACT_SHOT, bpf_fib_lookup, bpf_redir_neigh},
};
use proxy_common::maps::interface;

use crate::{
    count::{Outcome, PASS},
    family::Family,
    packet::{
        Skb,
        access::{self, Addressee, Way},
        headers::{ETHERNET_LEN, ETHERTYPE},
    },
    service::known_of,
};

/// Not 0 where it is on; chosen when the programs are loaded, so that the verifier removes all of this where not.
#[unsafe(no_mangle)]
static REDIRECT: Global<u32> = Global::new(0);

#[inline(always)]
pub fn is_on() -> bool {
    REDIRECT.load() != 0
}

/// Forwards a packet that ingress has sent on.
// VERIFIER: not told where the IP header is. The programs would be verified once for every place that it can have.
#[inline(always)]
pub fn forward<F: Family>(skb: Skb, outcome: Outcome) -> Outcome {
    if is_on() && outcome.is_on_its_way() {
        outcome.with_action(leave::<F>(skb))
    } else {
        outcome
    }
}

/// The action that makes it leave, or leaves it to the stack.
#[inline(never)]
fn leave<F: Family>(skb: Skb) -> i32 {
    // A tag, which would go along to where it means something else, is in band or out of band.
    let l3 = ETHERNET_LEN;
    if skb.read(ETHERTYPE) != Some(F::ETHERTYPE) || skb.is_tagged() || !is_ours(skb) {
        return PASS;
    }
    // SAFETY: numbers and arrays of them.
    let mut route = unsafe { access::zeroed::<bpf_fib_lookup>() };
    route.ifindex = skb.interface();
    let Some(aged) = F::ask_route(skb, l3, &mut route) else {
        return PASS;
    };
    // Without a link layer the kernel needs the route itself.
    let has_link_layer = match skb.find_route(&mut route) {
        Way::Known => has_address(&route),
        Way::ToBeResolved => known_of(route.ifindex) & interface::NO_LINK_LAYER == 0,
        Way::Unknown => false,
    };
    if !has_link_layer {
        return PASS;
    }
    if F::store_aged(skb, l3, aged).is_err() {
        return TC_ACT_SHOT;
    }
    // By the neighbour, not by its address: the kernel asks for that where it has none, and anew when it is old.
    access::redirect_to_neighbour(route.ifindex, &mut next_hop(&route))
}

/// Whether the frame is this node's to forward: one that a switch floods is another's, too. What a pod sends is
/// addressed to the bridge, or to a neighbour at it.
#[inline(always)]
fn is_ours(skb: Skb) -> bool {
    match skb.addressee() {
        Addressee::Host => true,
        Addressee::Other => known_of(skb.interface()) & interface::VETH_PORT != 0,
        Addressee::Many => false,
    }
}

/// Whether the next hop has a link-layer address.
#[inline(always)]
fn has_address(route: &bpf_fib_lookup) -> bool {
    let [a, b, c, d, e, f] = route.dmac;
    a | b | c | d | e | f != 0
}

/// Whose address the lookup has put in the destination's place.
#[inline(always)]
fn next_hop(route: &bpf_fib_lookup) -> bpf_redir_neigh {
    // SAFETY: as above.
    let mut hop = unsafe { access::zeroed::<bpf_redir_neigh>() };
    hop.nh_family = route.family as u32;
    // SAFETY: both are unions of one word and four, and every bit pattern is valid.
    unsafe { hop.__bindgen_anon_1.ipv6_nh = route.__bindgen_anon_4.ipv6_dst };
    hop
}
