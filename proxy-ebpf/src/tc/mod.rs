// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! The packet path: handles a packet at an interface's ingress or egress, as a packet of a known
//! flow or as the first of a new one. Called by the entry points in `main`.
//!
//! The programs pass packets that they cannot read, and drop packets that they have half changed.

mod begin;
mod behind;
mod between_pods;
mod carry;
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
mod offload;
mod rank;
mod redirect;
mod reject;
mod restore;
mod step;
mod trace;
mod translate;

pub use expire::expire;

use proxy_common::{Counter, FilterVerdict, maps::interface, trace::Hook};

use self::step::Next;
use crate::{
    count::{Outcome, PASS},
    family::{Family, Ipv4, Ipv6},
    globals,
    maps::{flow, node, traffic},
    packet::{
        Skb,
        access::{Addressee, Tag},
        headers::{ETHERTYPE_IPV4, ETHERTYPE_IPV6},
        parse::{network_offset, vlan_id},
    },
    socket,
};

/// Outcome of a packet that concerns no service.
const UNTOUCHED: Outcome = Outcome::pass(Counter::Untouched);

/// Runs a packet through the ingress program; returns tc's action.
#[inline(always)]
pub fn ingress(skb: Skb, link_layer: bool) -> i32 {
    if behind::is_served(skb, link_layer, behind::INGRESS) {
        return UNTOUCHED.conclude();
    }
    // The tag may have been set by the programs of another node, if a cluster runs inside this
    // cluster's pods.
    if globals::redirects() && skb.tag() != Tag::NONE {
        skb.set_tag(Tag::NONE);
    }
    if link_layer && is_of_vlan(skb) {
        return behind::conclude(skb, UNTOUCHED, behind::INGRESS);
    }
    let outcome = match network_offset(skb, link_layer) {
        Some((ETHERTYPE_IPV4, l3)) => ingress_of::<Ipv4>(skb, l3, link_layer),
        Some((ETHERTYPE_IPV6, l3)) => ingress_of::<Ipv6>(skb, l3, link_layer),
        _ => UNTOUCHED,
    };
    behind::conclude(skb, outcome, behind::INGRESS)
}

/// Whether a VLAN interface gets the frame next: its own program serves the frame, without the tag.
/// If the frame were translated here, it could not be redirected past the stack.
#[inline(always)]
fn is_of_vlan(skb: Skb) -> bool {
    vlan_id(skb) != 0 && node::interface(skb.interface()) & interface::VLANS != 0
}

#[inline(always)]
fn ingress_of<F: Family>(skb: Skb, l3: u32, link_layer: bool) -> Outcome {
    let place = trace::Location::new(Hook::Ingress, link_layer);
    if restore::has_header::<F>(skb, l3) {
        let outcome = restore::ingress::<F>(skb, l3);
        if !outcome.is_untouched() {
            trace::packet::<F>(skb, outcome, place.unknown());
            return outcome;
        }
    }
    match filter::at_ingress::<F>(skb, l3) {
        FilterVerdict::Pass => UNTOUCHED,
        FilterVerdict::Backends => {
            let outcome = between_pods::send::<F>(skb, link_layer);
            if !outcome.is_untouched() {
                trace::packet::<F>(skb, outcome, place.unknown());
            }
            outcome
        }
        FilterVerdict::Echo => {
            let outcome = echo::answer::<F>(skb, l3);
            trace::packet::<F>(skb, outcome, place.unknown());
            outcome
        }
        verdict => {
            let found = match verdict {
                FilterVerdict::OtherProtocol => reject::other_protocol::<F>(skb, l3),
                _ => ingress::ingress::<F>(skb, l3, verdict),
            };
            let begun = match found.next() {
                Next::Begin => begin::begin::<F>(skb),
                _ => found,
            };
            let step = match begun.next() {
                Next::Direct => direct::direct::<F>(skb),
                _ => begun,
            };
            let outcome = match step.next() {
                Next::Done(outcome) => outcome,
                Next::Send { first, counter } => redirect::send::<F>(skb, first, counter),
                Next::Reject { reset, counter } => reject::reject::<F>(skb, reset, counter),
                Next::Begin
                | Next::Direct
                | Next::Marked
                | Next::Own
                | Next::Carry
                | Next::Back
                | Next::Restore
                | Next::TooLarge { .. } => UNTOUCHED,
            };
            note_refusal::<F>(outcome);
            trace::packet::<F>(skb, outcome, place);
            let outcome = log::outcome::<F>(skb, outcome);
            if outcome.is_untouched() {
                between_pods::send::<F>(skb, link_layer)
            } else {
                outcome
            }
        }
    }
}

/// Runs a packet through the egress program; returns tc's action.
#[inline(always)]
pub fn egress(skb: Skb, link_layer: bool) -> i32 {
    if behind::is_served(skb, link_layer, behind::EGRESS) {
        return UNTOUCHED.conclude();
    }
    // Packets that ingress has translated completely need nothing more.
    let tag = if globals::redirects() {
        skb.tag()
    } else {
        Tag::NONE
    };
    if tag == Tag::TRANSLATED {
        return behind::conclude(skb, UNTOUCHED, behind::EGRESS);
    }
    let outcome = match network_offset(skb, link_layer) {
        Some((ETHERTYPE_IPV4, l3)) => egress_of::<Ipv4>(skb, l3, link_layer, tag),
        Some((ETHERTYPE_IPV6, l3)) => egress_of::<Ipv6>(skb, l3, link_layer, tag),
        _ => UNTOUCHED,
    };
    behind::conclude(skb, outcome, behind::EGRESS)
}

#[inline(always)]
fn egress_of<F: Family>(skb: Skb, l3: u32, link_layer: bool, tag: Tag) -> Outcome {
    if tag != Tag::NONE {
        offload::record::<F>(skb, link_layer, tag);
    }
    match filter::at_egress::<F>(skb, l3) {
        FilterVerdict::Pass => UNTOUCHED,
        verdict => {
            let left = egress::egress::<F>(skb, l3, verdict);
            let step = match left.next() {
                Next::Marked => {
                    let marked = egress::marked::<F>(skb);
                    match marked.next() {
                        Next::Done(outcome) if outcome.is_untouched() => egress::unmarked::<F>(skb),
                        _ => marked,
                    }
                }
                _ => left,
            };
            let outcome = match step.next() {
                Next::Done(outcome) => outcome,
                Next::Own => egress::own::<F>(skb),
                Next::Carry => carry::carry::<F>(skb),
                Next::Back => match restore::back::<F>(skb).next() {
                    Next::TooLarge { mtu } => reject::too_large::<F>(skb, mtu),
                    Next::Done(outcome) => outcome,
                    _ => UNTOUCHED,
                },
                Next::Begin
                | Next::Direct
                | Next::Marked
                | Next::Restore
                | Next::TooLarge { .. }
                | Next::Send { .. }
                | Next::Reject { .. } => UNTOUCHED,
            };
            note_refusal::<F>(outcome);
            let place = trace::Location::new(Hook::Egress, link_layer);
            trace::packet::<F>(skb, outcome, place);
            log::outcome::<F>(skb, outcome)
        }
    }
}

/// Counts the packet in the workspace as refused, for its service port, if the outcome is a
/// refusal.
#[inline(always)]
fn note_refusal<F: Family>(outcome: Outcome) {
    if Counter::is_refusal(outcome.counter())
        && let Some((.., scratch)) = flow::filled_workspace::<F>()
    {
        traffic::portolan_refuse(scratch.service.0, outcome.counter());
    }
}

/// Drops packets of connections of the node to itself that the policy drops; returns tc's action.
#[inline(always)]
pub fn egress_loopback(skb: Skb) -> i32 {
    if skb.mark() & globals::DROP_MARK.load() == 0 {
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
    // Traced by the packet's bytes, which name the family.
    let place = trace::Location::new(Hook::Loopback, true);
    trace::packet::<Ipv4>(skb, outcome, place.unknown());
    outcome.conclude()
}

/// Whom a frame is for.
enum Receiver {
    /// The kernel takes this node for it.
    Node,
    /// A neighbour at the same bridge, which hands the frame to it.
    Neighbour,
    /// Another machine: a promiscuous interface also gets its frames, and a switch floods them.
    Other,
}

/// Returns whom a frame is for. At a bridge's port, frames for the node are addressed to the bridge
/// or to another interface of the node.
#[inline(always)]
fn receiver(skb: Skb) -> Receiver {
    let is_port = || node::interface(skb.interface()) & interface::BRIDGE_PORT != 0;
    match skb.addressee() {
        Addressee::Host => Receiver::Node,
        Addressee::Other if is_port() => match skb.read(0).is_some_and(node::has_mac) {
            true => Receiver::Node,
            false => Receiver::Neighbour,
        },
        Addressee::Other | Addressee::Many => Receiver::Other,
    }
}

#[inline(always)]
fn is_for_this_node(skb: Skb) -> bool {
    matches!(receiver(skb), Receiver::Node)
}
