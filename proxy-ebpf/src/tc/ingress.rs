// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! Ingress of an interface: packets of clients beyond it, and replies on their way back.

use proxy_common::{
    BackendId, Counter, FilterVerdict, FlowKind, FlowState, Port, Protocol, ServiceId,
    flow::{Anew, ClientInterface, Signals, begins_anew, may_begin, proves_answer, ring::Ring},
};

use super::{filter, fragment, icmp, translate};
use crate::{
    count::Outcome,
    family::Family,
    maps::{
        flow::{self, Found},
        node, ring,
        workspace::{self, Clock, Workspace},
    },
    packet::{Packet, Shape, Skb, parse::parse_plain},
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
    let interface = node::client_interface(skb.interface());
    if verdict != FilterVerdict::Reply {
        packet.key.set_interface(interface);
    }
    scratch.avoided = BackendId(0);
    scratch.unanswered = 0;
    scratch.port_before = Port::ANY;
    if let Some(found) = flow::find::<F>(&packet.key, &mut scratch.found) {
        let entry = found.entry;
        if entry.kind != FlowKind::ORIGINAL {
            return reply::<F>(skb, packet, clock, &found);
        }
        let (protocol, signals) = (packet.key.protocol, packet.signals);
        let serves = || {
            entry.service == ServiceId::NONE
                || F::serves(entry.backend, entry.service, entry.generation)
        };
        match begins_anew(protocol, signals, entry.state, serves) {
            Anew::No => {
                let proven = || proves_answer(packet.acknowledgement(skb), entry.sequence);
                let is_over = found.account(protocol, signals, proven, clock.now());
                let element = found.element;
                // Before that, it is the number that the client must acknowledge, whatever anybody else sends.
                let is_free = entry.state.has(FlowState::ACKNOWLEDGED);
                if signals.has(Signals::FIN) && protocol == Protocol::TCP && is_free {
                    // For the next flow on its masquerade port.
                    element.set_sequence(packet.timestamp(skb));
                }
                let outcome = translate::to_backend::<F>(skb, packet, entry, Counter::ForwardedHit);
                if is_over {
                    element.set_slot(ring::push::<F>(Ring::Closed, &packet.key, scratch));
                }
                return outcome;
            }
            Anew::Ended => {}
            Anew::Unanswered => scratch.avoided = entry.backend,
        }
        scratch.port_before = flow::remove_all::<F>(&packet.key, scratch);
    } else if matches!(
        verdict,
        FilterVerdict::KnownPort | FilterVerdict::ExternalRange
    ) && !packet.signals.begins()
        && !interface.is_shared()
    {
        // A pod may also send replies, which are nobody's own.
        packet.key.set_interface(ClientInterface::SHARED);
        if let Some(found) = flow::find::<F>(&packet.key, &mut scratch.found)
            && found.entry.kind != FlowKind::ORIGINAL
        {
            return reply::<F>(skb, packet, clock, &found);
        }
        packet.key.set_interface(interface);
    }
    if matches!(verdict, FilterVerdict::KnownPort | FilterVerdict::Reply)
        && !may_begin(packet.key.protocol, packet.signals)
    {
        return Outcome::pass(Counter::Untouched);
    }
    Outcome::UNKNOWN
}

/// A packet of a flow that goes back to its client, or of one that is not translated.
#[inline(always)]
fn reply<F: Family>(
    skb: Skb,
    packet: &Packet<F::Addr>,
    clock: &mut Clock,
    found: &Found<'_, F::Addr>,
) -> Outcome {
    match found.entry.kind {
        FlowKind::REPLY => translate::send_on(found.entry, Counter::ReplyPassed),
        FlowKind::MASQUERADED_REPLY => translate::to_client::<F>(skb, packet, found.entry),
        _ => {
            found.account(packet.key.protocol, Signals::NONE, || true, clock.now());
            Outcome::pass(Counter::UntouchedFlow)
        }
    }
}
