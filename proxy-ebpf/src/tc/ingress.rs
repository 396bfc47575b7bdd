// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! Ingress of an interface: packets of clients beyond it, and replies on their way back.

use proxy_common::{
    Counter, FilterVerdict, FlowKind,
    flow::{Signals, begins_anew, may_begin},
};

use super::{
    begin::begin, filter, fragment, icmp, mid_stream::mid_stream, reject::reject, translate,
};
use crate::{
    count::Outcome,
    family::Family,
    maps::{
        flow,
        workspace::{self, Workspace},
    },
    packet::{Shape, Skb, parse::parse_plain},
};

/// One packet of a family at ingress. A subprogram per family, each with a stack of its own.
#[inline(never)]
pub fn ingress<F: Family>(skb: Skb, l3: u32, mut verdict: FilterVerdict) -> Outcome {
    let Some(workspace) = flow::workspace::<F>(workspace::ATTACHED, l3) else {
        return Outcome::pass(Counter::Untouched);
    };
    let Workspace {
        packet,
        clock,
        scratch,
    } = workspace;
    if verdict == FilterVerdict::NotPlain || parse_plain::<F>(skb, packet).is_none() {
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
        verdict = filter::of_parsed::<F>(packet);
        if verdict == FilterVerdict::Pass {
            return Outcome::pass(Counter::Untouched);
        }
    }
    if let Some(found) = flow::find::<F>(&packet.key, &mut scratch.found) {
        match found.entry.kind {
            FlowKind::ORIGINAL
                if begins_anew(
                    packet.key.protocol,
                    packet.signals,
                    found.entry.state,
                    || {
                        F::serves(
                            found.entry.backend,
                            found.entry.service,
                            found.entry.generation,
                        )
                    },
                ) =>
            {
                flow::remove_all::<F>(&packet.key, scratch);
            }
            FlowKind::ORIGINAL => {
                found.account(false, packet.key.protocol, packet.signals, clock.now());
                return translate::to_backend::<F>(skb, packet, found.entry, Counter::ForwardedHit);
            }
            FlowKind::REPLY => return Outcome::forward(Counter::ReplyPassed),
            FlowKind::MASQUERADED_REPLY => {
                return translate::to_client::<F>(skb, packet, found.entry);
            }
            _ => {
                found.account(false, packet.key.protocol, Signals::NONE, clock.now());
                return Outcome::pass(Counter::UntouchedFlow);
            }
        }
    }
    let outcome = if may_begin(packet.key.protocol, packet.signals) {
        begin::<F>(skb, packet, scratch)
    } else if verdict == FilterVerdict::KnownPort {
        return Outcome::pass(Counter::Untouched);
    } else {
        mid_stream::<F>(skb, packet)
    };
    match outcome.wants_answer() {
        Some(reset) => reject::<F>(skb, packet, reset, outcome),
        None => outcome,
    }
}
