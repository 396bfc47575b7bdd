// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! Egress of an interface: replies get the frontend's address back, marked packets are masqueraded.

use aya_ebpf::bindings::BPF_ANY;
use proxy_common::{
    BackendId, Counter, FilterVerdict, FlowKind, FlowState, Port, Protocol, ServiceId, Settings,
    filter::may_concern_egress, flow::Signals, ports as port_bits,
};

use super::{filter, fragment, icmp, masquerade, translate};
use crate::{
    count::Outcome,
    family::Family,
    globals, helpers,
    maps::{
        flow, node, ports,
        workspace::{self, Scratch, Workspace},
    },
    packet::{NatTarget, Packet, Shape, Skb, parse::parse_plain},
    socket,
};

/// One packet of a family at egress. A subprogram per family, each with a stack of its own.
#[inline(never)]
pub fn egress<F: Family>(skb: Skb, l3: u32, verdict: FilterVerdict) -> Outcome {
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
            Shape::Icmp => return icmp::egress::<F>(skb, packet, scratch),
            Shape::LaterFragment => {
                if !fragment::recall::<F>(packet) {
                    return Outcome::pass(Counter::Untouched);
                }
            }
            Shape::Whole | Shape::FirstFragment => {}
        }
        if !filter::is_known_at_egress(skb, packet.ports()) {
            return Outcome::pass(Counter::Untouched);
        }
    }
    let mark = skb.mark() & (globals::masquerade_mark() | globals::drop_mark());
    if mark != 0 {
        if mark & globals::drop_mark() != 0 && socket::is_dropped::<F>(skb) {
            return Outcome::drop(Counter::DroppedByMark);
        }
        if mark & globals::masquerade_mark() != 0 {
            let outcome = marked::<F>(skb, packet, scratch);
            if !outcome.is_untouched() {
                return outcome;
            }
        }
        // Somebody else's mark. The packet may be a reply all the same.
        if !may_concern_egress(ports::bits(packet.key.src_port)) {
            return Outcome::pass(Counter::Untouched);
        }
    }
    let Scratch {
        found, other, key, ..
    } = scratch;
    match flow::find::<F>(&packet.key, found) {
        Some(found) if found.entry.kind == FlowKind::REPLY => {
            let now = clock.now();
            flow::account_reply::<F>(&packet.key, &found, packet.signals, now, key, other);
            translate::from_frontend::<F>(skb, packet, found.entry)
        }
        _ if packet.key.protocol != Protocol::TCP
            && ports::bits(packet.key.src_port) & port_bits::NODE_PORT != 0 =>
        {
            own_datagram::<F>(packet, scratch)
        }
        _ => Outcome::pass(Counter::Untouched),
    }
}

/// A packet that ingress has marked leaves with the node's address.
#[inline(never)]
fn marked<F: Family>(
    skb: Skb,
    packet: &Packet<F::Addr>,
    scratch: &mut Scratch<F::Addr>,
) -> Outcome {
    let Some(settings) = node::settings() else {
        return Outcome::pass(Counter::Untouched);
    };
    if settings.has(Settings::MARK_ONLY) {
        return Outcome::pass(Counter::Untouched);
    }
    scratch.key.assign_reversed(&packet.key);
    let reply = match flow::find::<F>(&scratch.key, &mut scratch.found) {
        Some(found) if found.entry.kind == FlowKind::REPLY && found.entry.is_masqueraded() => {
            found.entry
        }
        // Somebody else's mark.
        _ => return Outcome::pass(Counter::Untouched),
    };
    let mut target = NatTarget {
        address: reply.masquerade,
        port: reply.masquerade_port,
        other_port: packet.key.dst_port,
    };
    if target.port.is_any() {
        if masquerade::choose::<F>(skb, packet, scratch) != 0 {
            return Outcome::drop(Counter::DroppedNoMasqueradePort);
        }
        (target.address, target.port) = (scratch.entry.masquerade, scratch.entry.masquerade_port);
    }
    // Cleared, so that no tunnel's outer packet inherits the mark.
    skb.set_mark(skb.mark() & !globals::masquerade_mark());
    translate::source::<F>(skb, packet, &target, Counter::Masqueraded)
}

/// A datagram that a node process sends from a served node port: notes that its answers are no requests to that port.
#[inline(never)]
fn own_datagram<F: Family>(packet: &Packet<F::Addr>, scratch: &mut Scratch<F::Addr>) -> Outcome {
    let now = helpers::now();
    let Scratch {
        other, key, entry, ..
    } = scratch;
    key.assign_reversed(&packet.key);
    match flow::find::<F>(key, other) {
        Some(found) => {
            if found.entry.kind == FlowKind::UNTOUCHED {
                found.account(true, key.protocol, Signals::NONE, now);
            }
        }
        None if node::serves_node_ports::<F>(packet.key.src) => {
            entry.kind = FlowKind::UNTOUCHED;
            entry.flags = 0;
            entry.port = Port::ANY;
            entry.address = packet.key.dst;
            entry.masquerade = packet.key.dst;
            entry.client_port = Port::ANY;
            entry.masquerade_port = Port::ANY;
            entry.service = ServiceId(0);
            entry.backend = BackendId(0);
            entry.generation = 0;
            entry.last_seen = now;
            entry.state = FlowState::UNANSWERED;
            entry._pad = 0;
            flow::seal::<F>(entry, key);
            // If the table is full, ingress treats the answers as requests.
            let _ = F::flows().insert(&*key, &*entry, BPF_ANY as u64);
        }
        None => {}
    }
    Outcome::pass(Counter::Untouched)
}
