// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! Egress of a node that a client meets: puts an outer header on the first packets of a flow whose
//! endpoint sees its client (`proxy_common::carried`). The header leads where the packet goes
//! anyway, to the endpoint. `restore` is what the endpoint's node does.

use proxy_common::{
    Counter, FlowKey, Port, Protocol,
    carried::{KEYS, is_token, token},
};

use super::translate;
use crate::{
    count::Outcome,
    family::Family,
    globals,
    maps::{flow, node},
    packet::{NatTarget, Packet, Shape, Skb, fib, headers::ETHERNET_LEN, outer},
};

by_family! {
    /// Sends the packet in the workspace on behind an outer header from and to the ends in
    /// `scratch.holder`, or masqueraded, if it does not fit.
    carry portolan_carry_v4 portolan_carry_v6 = put_on -> Outcome
}

#[inline(always)]
fn put_on<F: Family>(skb: Skb) -> Outcome {
    let Some((packet, _, scratch)) = flow::filled_workspace::<F>() else {
        return Outcome::drop(Counter::DroppedRewrite);
    };
    let ends = &mut scratch.holder;
    let made = token_of::<F>(0, ends);
    if !is_token(made) || !fits::<F>(skb, packet) {
        let target = NatTarget {
            address: ends.src,
            port: ends.src_port,
            other_port: packet.key.dst_port,
        };
        return translate::source::<F>(skb, packet, &target, Counter::Masqueraded);
    }
    ends.set_ports(ends.src_port, globals::header_port());
    ends.set_protocol(Protocol::UDP);
    match outer::put_on::<F>(skb, packet.l3, ends, made) {
        Ok(()) => Outcome::pass(Counter::Carried),
        Err(_) => Outcome::drop(Counter::DroppedRewrite),
    }
}

/// Whether an outer header can be put on the packet. What cannot get one is masqueraded: the
/// endpoint's node knows the flow by then, or the endpoint sees the node's address.
#[inline(always)]
fn fits<F: Family>(skb: Skb, packet: &Packet<F::Addr>) -> bool {
    packet.shape == Shape::Whole
        && packet.l3 <= ETHERNET_LEN
        && skb.segment_payload() == 0
        && outer::length(skb, packet.l3) + outer::overhead::<F>()
            <= fib::mtu_of(skb, skb.interface())
}

/// Returns the token of a header with these ends by the key with this number; no token if this node
/// has no such key or does not use headers.
#[inline(never)]
fn token_of<F: Family>(key: u32, ends: &FlowKey<F::Addr>) -> u64 {
    match node::header_key(key) {
        Some(key) if globals::header_port() != Port::ANY => {
            token(key, F::words(ends.src), F::words(ends.dst))
        }
        _ => 0,
    }
}

/// Whether one of the known keys has made the token for these addresses.
#[inline(always)]
pub fn is_genuine<F: Family>(made: u64, ends: &FlowKey<F::Addr>) -> bool {
    for key in 0..KEYS {
        if token_of::<F>(key, ends) == made {
            return is_token(made);
        }
    }
    false
}
