// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! Ingress of an interface: packets of clients beyond it, and replies on their way back.

use proxy_common::{
    BackendId, Counter, FilterVerdict, FlowKey, FlowKind, Port, Protocol, ServiceId,
    flow::{Anew, ClientInterface, Signals, begins_anew, change_by_client, may_begin, ring::Ring},
    traffic::repetition,
};

use super::{filter, fragment, icmp, translate};
use crate::{
    count::Outcome,
    family::Family,
    globals,
    maps::{
        flow::{self, Found},
        node, ring, traffic,
        workspace::{self, Clock, EntryBuffer, Scratch, Workspace},
    },
    packet::{Packet, Shape, Skb, parse::parse_plain},
    service::lookup,
};

/// How long nothing must have been seen of an established connection, in nanoseconds, until a SYN that anyone may have sent makes
/// another of it, if its backend no longer serves.
const SILENCE: u64 = 60_000_000_000;
/// How long an import holds a connection's packets at most, in nanoseconds.
const HELD_AT_MOST: u64 = 5_000_000_000;

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
    scratch.service = ServiceId::NONE;
    scratch.refiled = None;
    if verdict == FilterVerdict::NotPlain || parse_plain::<F>(skb, packet).is_none() {
        skb.pull_headers();
        if !F::parse(skb, packet) {
            return Outcome::pass(Counter::Untouched);
        }
        packet.fragment_interface = node::client_interface(skb.interface());
        match packet.shape {
            Shape::Icmp => return icmp::ingress::<F>(skb, packet, scratch),
            Shape::LaterFragment => {
                if !fragment::recall::<F>(packet) {
                    return fragment::without_first::<F>(packet);
                }
            }
            Shape::FirstFragment => {
                fragment::forget::<F>(packet);
            }
            Shape::Whole => {}
        }
        verdict = filter::of_parsed::<F>(packet);
        if matches!(verdict, FilterVerdict::Pass | FilterVerdict::Backends) {
            return Outcome::pass(Counter::Untouched);
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
        // A pod may also send replies, which are nobody's own.
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
            let (outcome, refiled) = reply::<F>(skb, packet, clock, &found, key, other);
            if refiled.is_some() {
                scratch.pushed.copy_from(&scratch.key);
                note_refiled::<F>(refiled, scratch);
            }
            return outcome;
        }
        let (protocol, signals) = (packet.key.protocol, packet.signals);
        let repeats = || flow::repeats(skb, packet, entry);
        let repetition = repetition(protocol, signals, entry.state, repeats);
        if repetition != 0 {
            traffic::note::<F>(entry.backend, entry.generation, repetition);
        }
        let now = clock.now();
        let owner = || {
            let key = &packet.key;
            lookup::record_of::<F>(key.dst, key.dst_port, key.protocol).map(|record| record.service)
        };
        let serves = || {
            entry.service == ServiceId::NONE
                || F::serves(entry.backend, entry.service, entry.generation)
                    && (protocol != Protocol::UDP || found.keeps_frontend(now, owner))
        };
        // Nobody else's packets come by a pod's interface.
        let genuine = || !interface.is_shared() || now.wrapping_sub(entry.last_seen) > SILENCE;
        match begins_anew(protocol, signals, entry.state, repeats, genuine, serves) {
            Anew::No => {
                let refiled = flow::account::<F>(skb, packet, &found, now, key, other);
                let outcome = if globals::redirects() {
                    Outcome::send(false, Counter::ForwardedHit)
                } else {
                    translate::to_backend::<F>(skb, packet, entry, Counter::ForwardedHit)
                };
                if refiled.is_some() {
                    scratch.pushed.copy_from(&packet.key);
                    note_refiled::<F>(refiled, scratch);
                }
                return outcome;
            }
            Anew::Ended => {}
            Anew::Unanswered => avoided = entry.backend,
        }
        port_before = flow::remove_all::<F>(&packet.key, scratch);
    }
    if matches!(verdict, FilterVerdict::KnownPort | FilterVerdict::Reply)
        && !may_begin(packet.key.protocol, packet.signals)
    {
        return Outcome::pass(Counter::Untouched);
    }
    // For what begins only: a hit pays nothing for it.
    (scratch.avoided, scratch.port_before) = (avoided, port_before);
    scratch.picks_up = 0;
    Outcome::UNKNOWN
}

/// Puts the key in `scratch.pushed` into a ring; with `forwarding: redirect` once the packet has been sent, which needs the entry that
/// was found.
#[inline(always)]
fn note_refiled<F: Family>(ring: Option<Ring>, scratch: &mut Scratch<F::Addr>) {
    if globals::redirects() {
        scratch.refiled = ring;
    } else if let Some(ring) = ring {
        ring::refile::<F>(ring, scratch);
    }
}

/// A packet of a flow that goes back to its client, or of one that is not translated. Returns the ring that the flow's key, in
/// `original_key`, goes into now.
#[inline(always)]
fn reply<F: Family>(
    skb: Skb,
    packet: &Packet<F::Addr>,
    clock: &mut Clock,
    found: &Found<'_, F::Addr>,
    original_key: &mut FlowKey<F::Addr>,
    other: &mut EntryBuffer<F::Addr>,
) -> (Outcome, Option<Ring>) {
    let outcome = match found.entry.kind {
        FlowKind::REPLY if found.entry.interface == ClientInterface::NODE => {
            let now = clock.now();
            let refiled = flow::account_reply::<F>(skb, packet, found, now, original_key, other);
            return (translate::to_node::<F>(skb, packet, found.entry), refiled);
        }
        FlowKind::REPLY if globals::redirects() => {
            // Egress accounts it once more if the stack gets it, which changes nothing.
            let now = clock.now();
            let refiled = flow::account_reply::<F>(skb, packet, found, now, original_key, other);
            return (Outcome::send(false, Counter::ReplyPassed), refiled);
        }
        FlowKind::REPLY => translate::send_on(found.entry, Counter::ReplyPassed),
        // What it changes of the flow's state is egress' to account, which finds the reply's entry.
        FlowKind::MASQUERADED_REPLY
            if globals::redirects() && found.changes_nothing(skb, packet, clock.now()) =>
        {
            Outcome::send(false, Counter::ReplyUnmasqueraded)
        }
        FlowKind::MASQUERADED_REPLY => translate::to_client::<F>(skb, packet, found.entry),
        // An agent that was killed in the middle holds nothing for long.
        FlowKind::HELD if clock.now().wrapping_sub(found.entry.last_seen) < HELD_AT_MOST => {
            Outcome::drop(Counter::DroppedHeld)
        }
        FlowKind::HELD => Outcome::pass(Counter::Untouched),
        _ => {
            let (protocol, state) = (packet.key.protocol, found.entry.state);
            let change =
                change_by_client(state, protocol, Signals::NONE, || false, || true, || true);
            original_key.copy_from(&packet.key);
            let refiled = found.change(protocol, change, clock.now());
            return (Outcome::pass(Counter::UntouchedFlow), refiled);
        }
    };
    (outcome, None)
}
