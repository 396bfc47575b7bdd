// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! Ingress of an interface: packets of the clients behind the interface, and replies on their way
//! back to clients.

use proxy_common::{
    BackendId, Counter, FilterVerdict, FlowKey, FlowKind, Port, Protocol, ServiceId,
    flow::{Anew, ClientInterface, Signals, begins_anew, change_by_client, may_begin},
    traffic::repetition,
};

use super::{filter, fragment, icmp, offload, step::Step, translate};
use crate::{
    count::Outcome,
    family::Family,
    globals,
    maps::{
        flow::{self, Found},
        node, traffic,
        workspace::{self, Beginning, Clock, EntryBuffer},
    },
    packet::{Packet, Shape, Skb, parse::parse_plain},
    service::lookup,
};

/// How long an established connection whose backend no longer serves must have been silent, in
/// nanoseconds, before a SYN that anyone may have sent begins another connection.
const SILENCE: u64 = 60_000_000_000;

/// Handles a packet of one family at ingress. A subprogram for each family, with a stack of its
/// own.
#[inline(never)]
pub fn ingress<F: Family>(skb: Skb, l3: u32, mut verdict: FilterVerdict) -> Step {
    let Some((packet, clock, scratch)) = flow::workspace::<F>(workspace::ATTACHED, l3) else {
        return Step::untouched();
    };
    scratch.service = ServiceId::NONE;
    if verdict == FilterVerdict::NotPlain || parse_plain::<F>(skb, packet).is_none() {
        skb.pull_headers();
        if !F::parse(skb, packet) {
            return Step::untouched();
        }
        packet.fragment_interface = node::client_interface(skb.interface());
        match packet.shape {
            Shape::Icmp => return icmp::ingress::<F>(skb, packet, scratch),
            Shape::LaterFragment => {
                if !fragment::recall::<F>(packet) {
                    return fragment::without_first::<F>(packet).into();
                }
            }
            Shape::FirstFragment => {
                fragment::forget::<F>(packet);
            }
            Shape::Whole => {}
        }
        verdict = filter::of_parsed::<F>(packet);
        if matches!(verdict, FilterVerdict::Pass | FilterVerdict::Backends) {
            return Step::untouched();
        }
    }
    let interface = node::client_interface(skb.interface());
    if verdict != FilterVerdict::Reply {
        packet.key.set_interface(interface);
    }
    let (mut avoided, mut port_before) = (BackendId(0), Port::ANY);
    let mut found = flow::find::<F>(&packet.key, &mut scratch.found);
    if found.is_none()
        && matches!(
            verdict,
            FilterVerdict::KnownPort | FilterVerdict::ExternalRange
        )
        && !packet.signals.begins()
        && !interface.is_shared()
    {
        // A pod may also send replies. The keys of their entries have no client's interface.
        packet.key.set_interface(ClientInterface::SHARED);
        found = flow::find::<F>(&packet.key, &mut scratch.found)
            .filter(|found| found.entry.kind != FlowKind::ORIGINAL);
        if found.is_none() {
            packet.key.set_interface(interface);
        }
    }
    if let Some(found) = found {
        let entry = found.entry;
        let (key, other) = (&mut scratch.key, &mut scratch.other);
        if entry.kind != FlowKind::ORIGINAL {
            let is_bound = globals::redirects()
                && offload::is_bound::<F>(skb, &packet.key.src, entry, &mut scratch.pod);
            scratch.bound = is_bound as u32;
            return reply::<F>(skb, packet, clock, &found, is_bound, key, other);
        }
        let (protocol, signals) = (packet.key.protocol, packet.signals);
        let repeats = || flow::repeats(skb, packet, entry);
        let repetition = repetition(protocol, signals, entry.state, repeats);
        if repetition != 0 {
            traffic::note::<F>(entry.backend.0, entry.generation, repetition);
        }
        let now = clock.now();
        let owner = || {
            if node::is_abandoned() {
                return None;
            }
            let key = &packet.key;
            lookup::record_of::<F>(key.dst, key.dst_port, key.protocol).map(|record| record.service)
        };
        let serves = || {
            entry.service == ServiceId::NONE
                || F::serves(entry.backend, entry.service, entry.generation)
                    && if protocol == Protocol::UDP {
                        found.keeps_frontend(now, owner)
                    } else {
                        !node::is_abandoned()
                    }
        };
        // Only the client's own packets come in by a pod's interface.
        let genuine = || !interface.is_shared() || now.wrapping_sub(entry.last_seen) > SILENCE;
        match begins_anew(protocol, signals, entry.state, repeats, genuine, serves) {
            Anew::No => {
                flow::account::<F>(skb, packet, &found, now, key, other);
                return if globals::redirects() {
                    Step::send(false, Counter::ForwardedHit)
                } else {
                    translate::to_backend::<F>(skb, packet, entry, Counter::ForwardedHit).into()
                };
            }
            Anew::Ended => {}
            Anew::Unanswered => avoided = entry.backend,
        }
        port_before = flow::remove_all::<F>(&packet.key, scratch);
    }
    if matches!(verdict, FilterVerdict::KnownPort | FilterVerdict::Reply)
        && !may_begin(packet.key.protocol, packet.signals)
    {
        return Step::untouched();
    }
    // Needed only for a flow that begins, so packets of known flows do not pay for it.
    scratch.beginning = Beginning::new(avoided, port_before);
    Step::BEGIN
}

/// Handles a packet of a flow that goes back to the flow's client, or of a flow that is not
/// translated. `is_bound`: see [`offload::is_bound`]; `original_key` and `other` are buffers.
#[inline(always)]
fn reply<F: Family>(
    skb: Skb,
    packet: &Packet<F::Addr>,
    clock: &mut Clock,
    found: &Found<'_, F::Addr>,
    is_bound: bool,
    original_key: &mut FlowKey<F::Addr>,
    other: &mut EntryBuffer<F::Addr>,
) -> Step {
    match found.entry.kind {
        FlowKind::REPLY if found.entry.interface == ClientInterface::NODE => {
            flow::account_reply::<F>(skb, packet, found, clock.now(), original_key, other);
            translate::to_node::<F>(skb, packet, found.entry).into()
        }
        FlowKind::REPLY if is_bound => {
            // If the stack gets the packet, egress accounts it once more, which changes nothing.
            flow::account_reply::<F>(skb, packet, found, clock.now(), original_key, other);
            Step::send(false, Counter::ReplyPassed)
        }
        // Egress accounts it, if the stack lets it pass.
        FlowKind::REPLY if globals::redirects() => Step::send(false, Counter::ReplyPassed),
        FlowKind::REPLY => Outcome::pass(Counter::ReplyPassed).into(),
        // Egress accounts changes of the flow's state, because it finds the reply's entry.
        FlowKind::MASQUERADED_REPLY
            if globals::redirects()
                && (!is_bound || found.changes_nothing(skb, packet, clock.now())) =>
        {
            Step::send(false, Counter::ReplyUnmasqueraded)
        }
        FlowKind::MASQUERADED_REPLY => translate::to_client::<F>(skb, packet, found.entry).into(),
        _ => {
            let (protocol, state) = (packet.key.protocol, found.entry.state);
            let change =
                change_by_client(state, protocol, Signals::NONE, || false, || true, || true);
            found.change(change, clock.now());
            Outcome::pass(Counter::UntouchedFlow).into()
        }
    }
}
