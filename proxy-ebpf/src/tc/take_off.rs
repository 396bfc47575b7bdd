// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! Ingress of uplinks and tunnels: takes the outer header off a carried packet. The token is
//! checked before anything else. Then the stack gets the packet as it left the other node's stack.
//! Called by the entry point; `carry` puts headers on.

use proxy_common::{
    Counter, FlowKey, FlowKind, Port, Protocol, ServiceId,
    carried::{Direction, KEYS},
};

use super::{carry::token, reject};
use crate::{
    count::Outcome,
    family::Family,
    globals,
    maps::{
        carried, flow, node,
        workspace::{self, Scratch},
    },
    packet::{
        Packet, Shape, Skb,
        fib::{self, FibResult},
        headers::ICMP_LEN,
        outer,
        parse::parse_plain,
    },
};

/// Whether the packet may have an outer header.
#[inline(always)]
pub fn has_header<F: Family>(skb: Skb, l3: u32) -> bool {
    let port = globals::header_port();
    !port.is_any() && F::plain(skb, l3).is_some_and(|(_, ports)| ports.dst == port)
}

by_family! {
    /// Takes the outer header off the packet, whose outer IP header lies at `l3`; returns the
    /// outcome as a word, untouched for a packet that is no carried one, or another node's.
    pub fn take_off(skb, l3) = portolan_take_off_v4 portolan_take_off_v6 of take
}

#[inline(always)]
fn take<F: Family>(skb: Skb, l3: u32) -> u32 {
    let untouched = Outcome::pass(Counter::Untouched).word();
    // No pod speaks for a node.
    if !node::client_interface(skb.interface()).is_shared() {
        return untouched;
    }
    let inner = l3 + outer::overhead::<F>();
    let Some((packet, clock, scratch)) = flow::workspace::<F>(workspace::ATTACHED, inner) else {
        return untouched;
    };
    scratch.service = ServiceId::NONE;
    let Some(outer) = F::outer(skb, l3) else {
        return untouched;
    };
    let ends = &mut scratch.holder;
    let (any, made) = (Port::ANY, outer.token);
    ends.assign(&outer.src, any, &outer.dst, any, Protocol::UDP);
    let Some(direction) = Direction::of(made) else {
        return untouched;
    };
    if !is_genuine::<F>(made, ends) {
        return Outcome::drop(Counter::DroppedHeader).word();
    }
    let is_here = match direction {
        Direction::There => is_endpoints::<F>(skb, scratch),
        Direction::Back => node::is_node_address::<F>(&ends.dst),
    };
    if !is_here {
        return untouched;
    }
    if F::plain(skb, inner).is_none() || parse_plain::<F>(skb, packet).is_none() {
        skb.pull_headers();
        if !F::parse(skb, packet) {
            return Outcome::drop(Counter::DroppedHeader).word();
        }
    }
    // The flow of an error, or of a later fragment, is noted already.
    let has_ports = matches!(packet.shape, Shape::Whole | Shape::FirstFragment);
    let is_other = packet.key.dst != scratch.holder.dst;
    let refusal = match direction {
        Direction::There if is_other => Some(Counter::DroppedHeader),
        Direction::There if has_ports => carried::note::<F>(skb, packet, clock, scratch),
        Direction::Back if has_ports && !is_expected::<F>(packet, scratch) => {
            carried::unknown().or(Some(Counter::DroppedHeader))
        }
        _ => None,
    };
    match refusal {
        Some(Counter::Untouched) => untouched,
        Some(counter) => Outcome::drop(counter).word(),
        None if skb.remove_outer(outer::overhead::<F>()).is_err() => {
            Outcome::drop(Counter::DroppedRewrite).word()
        }
        None => Outcome::pass(Counter::HeaderTakenOff).word(),
    }
}

by_family! {
    /// Makes the ICMP error in the workspace, about an outer header whose ends are in
    /// `scratch.key`, an error about the packet in it, if it says that this is too large. Returns
    /// the outcome as a word.
    pub fn of_error(skb) = portolan_outer_error_v4 portolan_outer_error_v6 of turn_inside_out
}

#[inline(always)]
fn turn_inside_out<F: Family>(skb: Skb) -> u32 {
    let untouched = Outcome::pass(Counter::Untouched).word();
    let failed = Outcome::drop(Counter::DroppedRewrite).word();
    let Some((packet, _, scratch)) = flow::filled_workspace::<F>() else {
        return untouched;
    };
    let (l3, header) = (packet.l3, packet.l4 + ICMP_LEN);
    let overhead = outer::overhead::<F>();
    let told = F::told_mtu(skb, packet.l4);
    let Some(outer) = F::outer(skb, header) else {
        return untouched;
    };
    // Who does not know the token may not make senders send less.
    if Direction::of(outer.token).is_none() || !is_genuine::<F>(outer.token, &scratch.key) {
        return untouched;
    }
    // What says nothing of a size is of no use to the sender.
    if told == 0 {
        return untouched;
    }
    let least = overhead + F::HEADER_LEN + ICMP_LEN;
    if told < least || skb.remove_outer(header + overhead - l3).is_err() {
        return failed;
    }
    packet.begin(l3);
    skb.pull_headers();
    // Then it is the packet that was too large, cut off; it goes back to its sender.
    if !F::parse(skb, packet) || packet.shape == Shape::Icmp || packet.shape == Shape::LaterFragment
    {
        return failed;
    }
    match reject::unreachable::<F>(skb, packet, told - overhead) {
        Ok(()) => Outcome::pass(Counter::TooLargeToCarry).word(),
        Err(_) => failed,
    }
}

/// Whether one of the known keys has made the token, which has a direction, for these addresses.
#[inline(always)]
fn is_genuine<F: Family>(made: u64, ends: &FlowKey<F::Addr>) -> bool {
    for key in 0..KEYS {
        if token::<F>(key, ends, made as u8 as u32) == made {
            return true;
        }
    }
    false
}

/// Whether the destination in `scratch.holder` is this node or a pod of it. A node may also lie on
/// the way to another one.
#[inline(always)]
fn is_endpoints<F: Family>(skb: Skb, scratch: &mut Scratch<F::Addr>) -> bool {
    let Scratch {
        holder: ends,
        route,
        pod,
        ..
    } = scratch;
    if node::local_pod::<F>(&ends.dst, pod) || node::is_node_address::<F>(&ends.dst) {
        return true;
    }
    match fib::look_up_ends::<F>(skb, ends, skb.interface(), route) {
        FibResult::Found | FibResult::NoNeighbour => {
            !node::client_interface(route.ifindex).is_shared()
        }
        FibResult::NotForwarded => false,
    }
}

/// Whether the packet in the workspace answers a flow that this node carries.
#[inline(always)]
fn is_expected<F: Family>(packet: &Packet<F::Addr>, scratch: &mut Scratch<F::Addr>) -> bool {
    flow::find::<F>(&packet.key, &mut scratch.found)
        .is_some_and(|found| found.entry.kind == FlowKind::REPLY && found.entry.is_carried())
}
