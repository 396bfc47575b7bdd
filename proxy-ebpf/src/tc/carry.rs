// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! Egress: puts an outer header on a packet that keeps its client's address. On the node that the
//! client meets the header takes the place of masquerading, and leads where the packet goes anyway,
//! to the endpoint. On the endpoint's node it leads the answer back to the first node, which may be
//! another way than to the client. Called by the entry point; `take_off` removes the header.

use proxy_common::{
    Addr, Counter, FlowKey, FlowKind, Port, Protocol,
    carried::{self, Direction},
    flow::Signals,
};

use super::{masquerade::source, step::Step, translate};
use crate::{
    count::Outcome,
    family::Family,
    globals,
    maps::{flow, node, workspace::Scratch},
    packet::{
        Packet, Shape, Skb,
        access::Tag,
        fib::{self, FibResult},
        headers::ETHERNET_LEN,
        outer,
    },
};

/// The first of the header's source ports. The rest of the port is a hash of the inner ends, by
/// which routers and devices spread flows.
const FIRST_PORT: u16 = 0xc000;
const TCP_LEN: u32 = 20;

by_family! {
    /// Puts an outer header on the packet in the workspace; the entry of its flow is in
    /// `scratch.found`.
    carry portolan_carry_v4 portolan_carry_v6 = put_on -> Step
}

#[inline(always)]
fn put_on<F: Family>(skb: Skb) -> Step {
    let Some((packet, _, scratch)) = flow::filled_workspace::<F>() else {
        return Outcome::drop(Counter::DroppedRewrite).into();
    };
    // The setting has gone, and the flow is left over.
    if globals::header_port().is_any() {
        return Outcome::drop(Counter::DroppedHeader).into();
    }
    // So that no tunnel's outer packet inherits the mark.
    skb.set_mark(skb.mark() & !globals::masquerade_marks());
    translate::remember_fragment::<F>(packet);
    // SAFETY: the caller has found it.
    let is_back = unsafe { scratch.found.assume_init_ref() }.kind == FlowKind::CARRIED;
    let (direction, mtu) = if is_back {
        (Direction::Back, way_back::<F>(skb, packet, scratch))
    } else if choose_source::<F>(skb, packet, scratch) {
        (Direction::There, fib::mtu_of(skb, skb.interface()))
    } else {
        return Outcome::drop(Counter::DroppedNoMasqueradePort).into();
    };
    let overhead = outer::overhead::<F>();
    // No route, or one that nothing fits.
    if mtu <= overhead + F::HEADER_LEN + TCP_LEN || packet.l3 > ETHERNET_LEN {
        return Outcome::drop(Counter::DroppedRewrite).into();
    }
    let room = mtu - overhead;
    if packet.key.protocol == Protocol::TCP
        && packet.shape == Shape::Whole
        && packet.signals.has(Signals::SYN)
    {
        let largest = room - F::HEADER_LEN - TCP_LEN;
        outer::portolan_limit_segments(skb.raw(), packet.l4, largest);
    }
    if outer::segment_length(skb, packet) > room {
        return Step::too_large(room);
    }
    let ends = &scratch.holder;
    let token = token::<F>(0, ends, direction as u32);
    if token == NO_TOKEN {
        return Outcome::drop(Counter::DroppedHeader).into();
    }
    if outer::put_on::<F>(skb, packet.l3, ends, token).is_err() {
        return Outcome::drop(Counter::DroppedRewrite).into();
    }
    if !is_back {
        return Outcome::pass(Counter::Carried).into();
    }
    if globals::redirects() {
        skb.set_tag(Tag::TRANSLATED);
    }
    Outcome::sent(fib::redirect(&scratch.route), Counter::Carried).into()
}

/// Fills in `scratch.holder`, the ends of the header to the node that the client meets, and
/// `scratch.route`, the way there; returns the route's MTU, or 0 without a route.
#[inline(always)]
fn way_back<F: Family>(skb: Skb, packet: &Packet<F::Addr>, scratch: &mut Scratch<F::Addr>) -> u32 {
    let Scratch {
        found,
        holder: ends,
        route,
        ..
    } = scratch;
    // SAFETY: the caller has found it.
    let to = unsafe { &found.assume_init_ref().masquerade };
    fill_ends(ends, &packet.key.src, to, packet.key.hash());
    match fib::look_up_ends::<F>(skb, ends, skb.interface(), route) {
        FibResult::Found => fib::mtu(route) as u32,
        FibResult::NoNeighbour => fib::mtu_of(skb, route.ifindex),
        FibResult::NotForwarded => 0,
    }
}

/// Fills in `scratch.holder`, the ends of the header to the endpoint; its source is the address
/// that the flow would be masqueraded with, chosen for its first packet. `false` if there is none.
#[inline(always)]
fn choose_source<F: Family>(
    skb: Skb,
    packet: &Packet<F::Addr>,
    scratch: &mut Scratch<F::Addr>,
) -> bool {
    let mut reply = &raw const scratch.found;
    // SAFETY: the caller has found it.
    let mut chosen = unsafe { (*reply).assume_init_ref() }.masquerade;
    if chosen == F::Addr::UNSPECIFIED {
        if !source::select::<F>(skb, packet, scratch) {
            return false;
        }
        chosen = scratch.key.dst;
        // An ICMP error has other ends than its flow.
        if packet.shape != Shape::Icmp {
            reply = &raw const scratch.found;
            // SAFETY: as above; the selection does not change it.
            scratch.entry = *unsafe { (*reply).assume_init_ref() };
            scratch.entry.masquerade.assign(&chosen);
            scratch.key.assign_reversed(&packet.key);
            flow::seal::<F>(&mut scratch.entry, &scratch.key);
            flow::amend::<F>(&scratch.key, &scratch.entry);
        }
    }
    let hash = packet.key.hash();
    fill_ends(&mut scratch.holder, &chosen, &packet.key.dst, hash);
    true
}

#[inline(always)]
fn fill_ends<A: Addr>(ends: &mut FlowKey<A>, src: &A, dst: &A, hash: u32) {
    let port = Port::from_host(FIRST_PORT | hash as u16 & !FIRST_PORT);
    ends.assign(src, port, dst, globals::header_port(), Protocol::UDP);
}

/// No token: the node has no key with this number.
const NO_TOKEN: u64 = 0;

/// Returns the token of a header with these ends by the key with this number.
#[inline(never)]
pub fn token<F: Family>(key: u32, ends: &FlowKey<F::Addr>, direction: u32) -> u64 {
    let direction = Direction::of(direction as u64);
    match (node::header_key(key), direction) {
        (Some(key), Some(direction)) => {
            carried::token(key, direction, F::words(ends.src), F::words(ends.dst))
        }
        _ => NO_TOKEN,
    }
}
