// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! The packet path: a packet at an interface's ingress or egress, by its flow or as the first of one. Called by the entry
//! points in `main`.
//!
//! The programs pass a packet that they cannot read. They drop one that they have half changed.

/// Makes a function over a packet from `$decide`, which is generic over the family.
// VERIFIER: exported, so that it is verified once and not on every path that leads to it.
macro_rules! by_family {
    ($(#[$doc:meta])* $name:ident $v4:ident $v6:ident = $decide:ident) => {
        $(#[$doc])*
        #[inline(always)]
        pub fn $name<F: $crate::family::Family>(skb: $crate::packet::Skb) -> $crate::count::Outcome {
            $crate::count::Outcome::from_word(if F::VERSION == 4 {
                $v4(skb.raw())
            } else {
                $v6(skb.raw())
            })
        }

        /// The function for IPv4; the outcome as one word.
        #[unsafe(no_mangle)]
        #[inline(never)]
        pub extern "C" fn $v4(skb: *mut aya_ebpf::bindings::__sk_buff) -> u32 {
            $decide::<$crate::family::Ipv4>($crate::packet::Skb::of(skb)).word()
        }

        /// The function for IPv6; the outcome as one word.
        #[unsafe(no_mangle)]
        #[inline(never)]
        pub extern "C" fn $v6(skb: *mut aya_ebpf::bindings::__sk_buff) -> u32 {
            $decide::<$crate::family::Ipv6>($crate::packet::Skb::of(skb)).word()
        }
    };
}

mod begin;
mod between_pods;
mod direct;
mod echo;
mod egress;
mod expire;
mod filter;
mod fragment;
mod icmp;
mod ingress;
mod log;
mod masquerade;
mod mid_stream;
mod rank;
mod redirect;
mod reject;
mod trace;
mod translate;

pub use expire::expire;

use proxy_common::{Counter, FilterVerdict, maps::interface, trace::Hook};

use crate::{
    count::{Outcome, PASS},
    family::{Family, Ipv4, Ipv6},
    globals,
    maps::{flow, node, traffic},
    packet::{
        Skb,
        access::Addressee,
        headers::{ETHERTYPE_IPV4, ETHERTYPE_IPV6},
        parse::{network_offset, vlan_id},
    },
    socket,
};

/// Runs a packet through the ingress program; returns tc's action.
#[inline(always)]
pub fn ingress(skb: Skb, link_layer: bool) -> i32 {
    // Another node's programs, of a cluster inside of this one's pods, may have said so.
    if globals::redirects() && skb.is_translated() {
        skb.set_translated(false);
    }
    if link_layer && is_of_vlan(skb) {
        return Outcome::pass(Counter::Untouched).conclude();
    }
    match network_offset(skb, link_layer) {
        Some((ETHERTYPE_IPV4, l3)) => ingress_of::<Ipv4>(skb, l3, link_layer),
        Some((ETHERTYPE_IPV6, l3)) => ingress_of::<Ipv6>(skb, l3, link_layer),
        _ => Outcome::pass(Counter::Untouched),
    }
    .conclude()
}

/// Whether the interface of a VLAN gets the frame next, whose own program serves it without the tag. Translated here, it could not
/// leave past the stack.
#[inline(always)]
fn is_of_vlan(skb: Skb) -> bool {
    vlan_id(skb) != 0 && node::interface(skb.interface()) & interface::VLANS != 0
}

#[inline(always)]
fn ingress_of<F: Family>(skb: Skb, l3: u32, link_layer: bool) -> Outcome {
    let place = trace::Place::new(Hook::Ingress, link_layer);
    match filter::at_ingress::<F>(skb, l3) {
        FilterVerdict::Pass => Outcome::pass(Counter::Untouched),
        FilterVerdict::Backends => between_pods::send::<F>(skb, link_layer),
        FilterVerdict::Echo => {
            let outcome = echo::answer::<F>(skb, l3);
            trace::packet::<F>(skb, outcome, place.unknown());
            outcome
        }
        verdict => {
            let mut outcome = ingress::ingress::<F>(skb, l3, verdict);
            if outcome.is_unknown() {
                outcome = begin::begin::<F>(skb);
            }
            if globals::is_shadow() {
                trace::packet::<F>(skb, outcome, place);
                return log::outcome::<F>(skb, outcome.watched());
            }
            if outcome.is_direct() {
                outcome = direct::direct::<F>(skb);
            }
            outcome = redirect::send::<F>(skb, outcome);
            if let Some(reset) = outcome.wants_answer() {
                outcome = reject::reject::<F>(skb, reset, outcome);
            }
            note_refusal::<F>(outcome);
            trace::packet::<F>(skb, outcome, place);
            let outcome = log::outcome::<F>(skb, outcome);
            if outcome.is_untouched() {
                between_pods::send::<F>(skb, link_layer)
            } else if link_layer {
                redirect::forward::<F>(skb, outcome)
            } else {
                outcome
            }
        }
    }
}

/// Runs a packet through the egress program; returns tc's action.
#[inline(always)]
pub fn egress(skb: Skb, link_layer: bool) -> i32 {
    // A shadow has no flows, whose answers it would see. What ingress has translated needs nothing more.
    if globals::is_shadow() || globals::redirects() && skb.is_translated() {
        return Outcome::pass(Counter::Untouched).conclude();
    }
    match network_offset(skb, link_layer) {
        Some((ETHERTYPE_IPV4, l3)) => egress_of::<Ipv4>(skb, l3, link_layer),
        Some((ETHERTYPE_IPV6, l3)) => egress_of::<Ipv6>(skb, l3, link_layer),
        _ => Outcome::pass(Counter::Untouched),
    }
    .conclude()
}

#[inline(always)]
fn egress_of<F: Family>(skb: Skb, l3: u32, link_layer: bool) -> Outcome {
    match filter::at_egress::<F>(skb, l3, || between_pods::forget::<F>(skb, link_layer)) {
        FilterVerdict::Pass => Outcome::pass(Counter::Untouched),
        verdict => {
            let mut outcome = egress::egress::<F>(skb, l3, verdict);
            if outcome.is_marked() {
                outcome = egress::marked::<F>(skb);
                if outcome.is_untouched() {
                    outcome = egress::unmarked::<F>(skb);
                }
            }
            if outcome.is_direct() {
                outcome = egress::own::<F>(skb);
            }
            note_refusal::<F>(outcome);
            let place = trace::Place::new(Hook::Egress, link_layer);
            trace::packet::<F>(skb, outcome, place);
            log::outcome::<F>(skb, outcome)
        }
    }
}

/// Notes that the packet in the workspace was not served, if that is so.
#[inline(always)]
fn note_refusal<F: Family>(outcome: Outcome) {
    if Counter::is_refusal(outcome.counter())
        && let Some(workspace) = flow::filled_workspace::<F>()
    {
        traffic::refuse(workspace.scratch.service, outcome.counter());
    }
}

/// Drops what policy drops of the node's own connections to itself; returns tc's action.
#[inline(always)]
pub fn egress_loopback(skb: Skb) -> i32 {
    if globals::is_shadow() || skb.mark() & globals::drop_mark() == 0 {
        return PASS;
    }
    let is_dropped = match network_offset(skb, true) {
        Some((ETHERTYPE_IPV4, _)) => socket::is_dropped::<Ipv4>(skb),
        Some((ETHERTYPE_IPV6, _)) => socket::is_dropped::<Ipv6>(skb),
        _ => false,
    };
    if !is_dropped {
        return PASS;
    }
    let outcome = Outcome::drop(Counter::DroppedByMark);
    // By its bytes, which name the family.
    let place = trace::Place::new(Hook::Loopback, true);
    trace::packet::<Ipv4>(skb, outcome, place.unknown());
    outcome.conclude()
}

/// Whether this node is the frame's receiver. A promiscuous interface also gets frames for other machines, and a switch
/// floods them. Where the agent's word about the interface has the bit `port`, frames for another address count as well: at
/// a bridge's port they are addressed to the bridge, or to a neighbour at it.
#[inline(always)]
fn is_for_this_node(skb: Skb, port: u32) -> bool {
    is_receiver(skb, || node::interface(skb.interface()) & port != 0)
}

/// The same for a caller that knows whether frames for another address count.
#[inline(always)]
fn is_receiver(skb: Skb, is_port: impl FnOnce() -> bool) -> bool {
    match skb.addressee() {
        Addressee::Host => true,
        Addressee::Other => is_port(),
        Addressee::Many => false,
    }
}
