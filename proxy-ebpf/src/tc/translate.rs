// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! Translates a packet as its flow's entry says. Called by the other modules of the packet path.

use proxy_common::{Counter, FlowEntry, Port};

use super::fragment;
use crate::{
    count::Outcome,
    family::Family,
    maps::{
        node,
        traffic::{self, Direction},
    },
    packet::{NatTarget, Packet, Shape, Skb},
};

/// Ingress: sends a client's packet to the flow's backend, marked if it must be masqueraded, or
/// with the client's address instead of another node's.
/// `entry` is the original entry.
#[inline(always)]
pub fn to_backend<F: Family>(
    skb: Skb,
    packet: &Packet<F::Addr>,
    entry: &FlowEntry<F::Addr>,
    counter: Counter,
) -> Outcome {
    if entry.is_restored() {
        let target = NatTarget {
            address: entry.masquerade,
            port: entry.masquerade_port,
            other_port: packet.key.dst_port,
        };
        return source::<F>(skb, packet, &target, counter);
    }
    if !destination::<F>(skb, packet, entry, entry.client_port) {
        return Outcome::drop(Counter::DroppedRewrite);
    }
    if entry.is_masqueraded() {
        skb.set_mark(skb.mark() | node::masquerade_mark());
    }
    traffic::count::<F>(skb, packet, entry, Direction::In);
    Outcome::pass(counter)
}

/// Ingress: sends a reply to the masquerade address on to the client. Egress puts the frontend's
/// address into the reply and accounts it. `entry` is the masqueraded reply's.
#[inline(always)]
pub fn to_client<F: Family>(
    skb: Skb,
    packet: &Packet<F::Addr>,
    entry: &FlowEntry<F::Addr>,
) -> Outcome {
    if !destination::<F>(skb, packet, entry, packet.key.src_port) {
        return Outcome::drop(Counter::DroppedRewrite);
    }
    Outcome::pass(Counter::ReplyUnmasqueraded)
}

/// Ingress: gives an answer to a connection of the node, which had left with another source port,
/// its original port back.
#[inline(always)]
pub fn to_node<F: Family>(
    skb: Skb,
    packet: &Packet<F::Addr>,
    entry: &FlowEntry<F::Addr>,
) -> Outcome {
    remember_fragment::<F>(packet);
    let target = NatTarget {
        address: packet.key.dst,
        port: entry.client_port,
        other_port: packet.key.src_port,
    };
    if !F::rewrite_destination(skb, packet, &target) {
        return Outcome::drop(Counter::DroppedRewrite);
    }
    Outcome::pass(Counter::ReplyUnmasqueraded)
}

/// Egress: gives a reply the frontend's address as its source. `entry` is the reply entry.
#[inline(always)]
pub fn from_frontend<F: Family>(
    skb: Skb,
    packet: &Packet<F::Addr>,
    entry: &FlowEntry<F::Addr>,
) -> Outcome {
    let target = NatTarget {
        address: entry.address,
        port: entry.port,
        other_port: entry.client_port,
    };
    let outcome = source::<F>(skb, packet, &target, Counter::ReplyTranslated);
    if outcome.is_of(Counter::ReplyTranslated) {
        traffic::count::<F>(skb, packet, entry, Direction::Out);
    }
    outcome
}

/// Gives a packet the source of `target`.
#[inline(always)]
pub fn source<F: Family>(
    skb: Skb,
    packet: &Packet<F::Addr>,
    target: &NatTarget<F::Addr>,
    counter: Counter,
) -> Outcome {
    remember_fragment::<F>(packet);
    if !F::rewrite_source(skb, packet, target) {
        return Outcome::drop(Counter::DroppedRewrite);
    }
    Outcome::pass(counter)
}

/// Replaces the packet's destination by the entry's address and port, and its source port by
/// `source_port`; false if the kernel refused to write.
#[inline(always)]
fn destination<F: Family>(
    skb: Skb,
    packet: &Packet<F::Addr>,
    entry: &FlowEntry<F::Addr>,
    source_port: Port,
) -> bool {
    remember_fragment::<F>(packet);
    let target = NatTarget {
        address: entry.address,
        port: entry.port,
        other_port: source_port,
    };
    F::rewrite_destination(skb, packet, &target)
}

/// Stores the ports of a first fragment.
#[inline(always)]
pub fn remember_fragment<F: Family>(packet: &Packet<F::Addr>) {
    if packet.shape == Shape::FirstFragment {
        fragment::remember::<F>(packet);
    }
}
