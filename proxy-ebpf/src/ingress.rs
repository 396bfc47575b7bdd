// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! Ingress of an interface: what comes from clients beyond it, and replies on their way back.

use proxy_common::{Counter, FlowEntry, FlowKind, Protocol, flow::Signals};

use crate::{
    begin::begin,
    count::Outcome,
    family::Family,
    filter::{self, Passage},
    flow, fragment, icmp,
    maps::Workspace,
    marks,
    packet::{Packet, Shape, Skb, parse::parse_plain},
    reject::reject,
    rewrite::To,
    service,
};

/// One packet of a family at ingress. A subprogram per family, each with a stack of its own.
#[inline(never)]
pub fn ingress<F: Family>(skb: Skb, l3: u32, mut passage: Passage) -> Outcome {
    let Some(workspace) = flow::workspace::<F>(l3) else {
        return Outcome::pass(Counter::Untouched);
    };
    let Workspace {
        packet,
        clock,
        scratch,
    } = workspace;
    if passage == Passage::Unknown || parse_plain::<F>(skb, packet).is_none() {
        skb.pull_headers();
        if !F::parse(skb, packet) {
            return Outcome::pass(Counter::Untouched);
        }
        match packet.shape {
            Shape::Icmp => return icmp::ingress::<F>(skb, packet, scratch),
            Shape::LaterFragment => {
                if !fragment::recall::<F>(packet) {
                    return fragment::without_first::<F>(packet);
                }
            }
            Shape::Whole | Shape::FirstFragment => {}
        }
        let Some(settings) = service::settings() else {
            return Outcome::pass(Counter::Untouched);
        };
        passage = filter::judge_ingress_by::<F>(settings, packet.key.dst, packet.ports());
        if passage == Passage::Passes {
            return Outcome::pass(Counter::Untouched);
        }
    }
    if let Some(found) = flow::find::<F>(&packet.key, &mut scratch.found) {
        match found.entry.kind {
            FlowKind::ORIGINAL if begins_anew::<F>(packet, found.entry) => {
                flow::remove_all::<F>(&packet.key, scratch);
            }
            FlowKind::ORIGINAL => {
                found.account(false, packet.key.protocol, packet.signals, clock.now());
                return translate::<F>(skb, packet, found.entry, Counter::ForwardedHit);
            }
            FlowKind::REPLY => return Outcome::pass(Counter::ReplyPassed),
            FlowKind::MASQUERADED_REPLY => return unmasquerade::<F>(skb, packet, found.entry),
            _ => {
                found.account(false, packet.key.protocol, Signals::NONE, clock.now());
                return Outcome::pass(Counter::UntouchedFlow);
            }
        }
    }
    if passage == Passage::MayConcern && !may_begin(packet) {
        return Outcome::pass(Counter::Untouched);
    }
    let outcome = begin::<F>(skb, packet, scratch);
    match outcome.wants_answer() {
        Some(reset) => reject::<F>(skb, packet, reset, outcome),
        None => outcome,
    }
}

/// Whether a packet of no known flow may be the first of one.
#[inline(always)]
pub fn may_begin<A>(packet: &Packet<A>) -> bool {
    packet.key.protocol == Protocol::UDP || packet.signals.begins()
}

/// Whether a known flow is over, or its backend no longer serves, so that this packet begins another.
#[inline(always)]
fn begins_anew<F: Family>(packet: &Packet<F::Addr>, entry: &FlowEntry<F::Addr>) -> bool {
    if packet.key.protocol != Protocol::UDP {
        return packet.signals.begins() && entry.state.is_closing();
    }
    // A datagram's backend must still serve; TCP keeps its own until it ends.
    !F::backends()
        .get(entry.backend.0)
        .is_some_and(|backend| backend.is_current(entry.service, entry.generation))
}

/// Sends an original packet where its entry says and marks it if it must be masqueraded.
#[inline(always)]
pub fn translate<F: Family>(
    skb: Skb,
    packet: &Packet<F::Addr>,
    entry: &FlowEntry<F::Addr>,
    counter: Counter,
) -> Outcome {
    if packet.shape == Shape::FirstFragment {
        fragment::remember::<F>(packet);
    }
    let to = To {
        address: entry.address,
        port: entry.port,
        other_port: entry.client_port,
    };
    if !F::rewrite_destination(skb, packet, &to) {
        return Outcome::drop(Counter::DroppedRewrite);
    }
    if entry.is_masqueraded() {
        skb.set_mark(skb.mark() | marks::masquerade());
    }
    Outcome::pass(counter)
}

/// A reply that came to the masquerade address: on to its client. The frontend's address is put back
/// at egress, where the entry for it also accounts the packet.
#[inline(always)]
fn unmasquerade<F: Family>(
    skb: Skb,
    packet: &Packet<F::Addr>,
    entry: &FlowEntry<F::Addr>,
) -> Outcome {
    if packet.shape == Shape::FirstFragment {
        fragment::remember::<F>(packet);
    }
    let to = To {
        address: entry.address,
        port: entry.port,
        other_port: packet.key.src_port,
    };
    if !F::rewrite_destination(skb, packet, &to) {
        return Outcome::drop(Counter::DroppedRewrite);
    }
    Outcome::pass(Counter::ReplyUnmasqueraded)
}
