// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! Egress of an interface: replies get the frontend's address as their source again, marked packets
//! are masqueraded.

mod own;

pub use own::own;

use proxy_common::{
    Counter, FilterVerdict, FlowKind, FlowState, Protocol, ServiceId, Settings,
    filter::{may_be_shared, may_concern_egress},
    flow::{ClientInterface, Signals, change_by_backend},
};

use super::{
    filter, fragment, icmp,
    masquerade::{CHOSEN, FULL, choose},
    step::Step,
    translate,
};
use crate::{
    count::Outcome,
    family::Family,
    globals, helpers,
    maps::{
        flow, node, ports, room,
        workspace::{self, Clock, Scratch},
    },
    packet::{NatTarget, Packet, Shape, Skb, headers::Ports, parse::parse_plain},
    service::lookup,
    socket,
};

/// Handles a packet of one family at egress. A subprogram for each family, with a stack of its own.
#[inline(never)]
pub fn egress<F: Family>(skb: Skb, l3: u32, verdict: FilterVerdict) -> Step {
    let Some((packet, clock, scratch)) = flow::workspace::<F>(workspace::ATTACHED, l3) else {
        return Step::untouched();
    };
    scratch.service = ServiceId::NONE;
    if verdict == FilterVerdict::NotPlain || parse_plain::<F>(skb, packet).is_none() {
        skb.pull_headers();
        if !F::parse(skb, packet) {
            return Step::untouched();
        }
        packet.fragment_interface = ClientInterface::SHARED;
        match packet.shape {
            Shape::Icmp => return icmp::egress::<F>(skb, packet, scratch),
            Shape::LaterFragment => {
                if !fragment::recall::<F>(packet) {
                    return Step::untouched();
                }
            }
            Shape::FirstFragment => {
                fragment::forget::<F>(packet);
            }
            Shape::Whole => {}
        }
        let by_rules = |shared| is_by_rules::<F>(packet, shared);
        let src = || Some(packet.key.src);
        if !filter::is_known_at_egress::<F>(skb, packet.ports(), by_rules, src) {
            return Step::untouched();
        }
    }
    let mark = skb.mark() & (globals::masquerade_marks() | globals::DROP_MARK.load());
    if mark != 0 {
        if mark & globals::DROP_MARK.load() != 0 && socket::is_dropped::<F>(skb) {
            return Outcome::drop(Counter::DroppedByMark).into();
        }
        if mark & globals::masquerade_marks() != 0 {
            return Step::MARKED;
        }
        if !may_concern_egress(ports::bits(packet.key.src_port)) {
            return Step::untouched();
        }
    }
    leaving::<F>(skb, packet, clock, scratch)
}

/// Handles the packet in the workspace, whose mark was set by another program. The packet may still
/// be a reply.
#[inline(never)]
pub fn unmarked<F: Family>(skb: Skb) -> Step {
    match flow::filled_workspace::<F>() {
        Some((packet, clock, scratch))
            if may_concern_egress(ports::bits(packet.key.src_port))
                || is_of_others::<F>(skb, packet) =>
        {
            leaving::<F>(skb, packet, clock, scratch)
        }
        _ => Step::untouched(),
    }
}

/// Whether there are no surviving connections of a previous proxy, whose replies also leave with a
/// frontend's address.
#[inline(always)]
fn has_no_other_proxy() -> bool {
    node::settings().is_some_and(|settings| settings.has(Settings::RESET_UNKNOWN))
}

/// Handles a packet that may be one of three: a reply; a datagram from a frontend's port at an
/// address of the node; a packet with a masqueraded flow's tuple. The last is from a process of the
/// node, or the node's rules have masqueraded it; these rules do not know our masquerade ports.
#[inline(always)]
fn leaving<F: Family>(
    skb: Skb,
    packet: &mut Packet<F::Addr>,
    clock: &mut Clock,
    scratch: &mut Scratch<F::Addr>,
) -> Step {
    let Scratch {
        found, other, key, ..
    } = &mut *scratch;
    match flow::find::<F>(&packet.key, found) {
        Some(found) if found.entry.kind == FlowKind::REPLY && found.entry.is_restored() => {
            flow::account_reply::<F>(skb, packet, &found, clock.now(), key, other);
            Step::BACK
        }
        // The flow's client is behind another interface: a pod has sent with the address of the pod
        // behind this interface.
        Some(found)
            if found.entry.kind == FlowKind::REPLY
                && found.entry.interface != node::client_interface(skb.interface()) =>
        {
            Step::untouched()
        }
        Some(found) if found.entry.kind == FlowKind::REPLY => {
            flow::account_reply::<F>(skb, packet, &found, clock.now(), key, other);
            translate::from_frontend::<F>(skb, packet, found.entry).into()
        }
        // The kernel forwards no IPv4 packet that came in with an address of the node as its
        // source. So a forwarded packet with such a source got it from the node's rules, which
        // masquerade a pod's packets.
        _ if packet.key.protocol != Protocol::TCP
            && (skb.is_own() || F::VERSION == 4 && has_no_other_proxy())
            && filter::may_come_from_frontend::<F>(ports::bits(packet.key.src_port), || {
                Some(packet.key.src)
            }) =>
        {
            own_datagram::<F>(packet, scratch).into()
        }
        _ if is_of_others::<F>(skb, packet) => Step::OWN,
        _ => Step::untouched(),
    }
}

/// Whether the packet may begin or belong to a connection that `own` handles.
#[inline(always)]
fn is_of_others<F: Family>(skb: Skb, packet: &Packet<F::Addr>) -> bool {
    let Ports { src, dst } = packet.ports();
    let is_shared = may_be_shared(ports::bits(src), ports::bits(dst));
    let is_marked = skb.mark() & globals::masquerade_marks() != 0;
    if skb.is_own() || is_marked {
        is_shared || packet.signals.begins()
    } else {
        is_by_rules::<F>(packet, is_shared)
    }
}

/// See [`filter::is_by_rules`].
#[inline(always)]
fn is_by_rules<F: Family>(packet: &Packet<F::Addr>, shared: bool) -> bool {
    let is_from_node = || node::is_node_address::<F>(&packet.key.src);
    filter::is_by_rules::<F>(packet.key.protocol, packet.signals, shared, is_from_node)
}

by_family! {
    /// Masquerades the packet in the workspace, which ingress has marked: it leaves with the node's
    /// address, or behind an outer header.
    marked portolan_marked_v4 portolan_marked_v6 = masquerade -> Step
}

#[inline(always)]
fn masquerade<F: Family>(skb: Skb) -> Step {
    let (Some((packet, _, scratch)), Some(settings)) =
        (flow::filled_workspace::<F>(), node::settings())
    else {
        return Step::untouched();
    };
    if settings.has(Settings::MARK_ONLY) {
        return Step::untouched();
    }
    scratch.key.assign_reversed(&packet.key);
    let reply = match flow::find::<F>(&scratch.key, &mut scratch.found) {
        Some(found) if found.entry.kind == FlowKind::REPLY && found.entry.is_masqueraded() => {
            found.entry
        }
        // The mark is another program's.
        _ => return Step::untouched(),
    };
    scratch.service = reply.service;
    let is_carried = reply.is_carried() && !reply.state.has(FlowState::ANSWERED);
    let mut target = NatTarget {
        address: reply.masquerade,
        port: reply.masquerade_port,
        other_port: packet.key.dst_port,
    };
    if target.port.is_any() {
        let mut result = choose::<F>(skb);
        if result == FULL {
            let tuple = &raw const scratch.key;
            room::make::<F>(tuple, scratch);
            scratch.key.assign_reversed(&packet.key);
            // The flow itself gives way, too.
            if flow::find::<F>(&scratch.key, &mut scratch.found).is_some() {
                result = choose::<F>(skb);
            }
        }
        // The calls have changed the scratch.
        helpers::reread(scratch);
        match result {
            CHOSEN => {}
            FULL => return Outcome::drop(Counter::DroppedFlowTableFull).into(),
            _ => return Outcome::drop(Counter::DroppedNoMasqueradePort).into(),
        }
        (target.address, target.port) = (scratch.entry.masquerade, scratch.entry.masquerade_port);
    }
    // The mark is cleared, so that no tunnel's outer packet inherits it.
    skb.set_mark(skb.mark() & !globals::masquerade_marks());
    if is_carried {
        let (from, to) = (&target.address, &packet.key.dst);
        let holder = &mut scratch.holder;
        holder.assign(from, target.port, to, target.port, Protocol::UDP);
        return Step::CARRY;
    }
    translate::source::<F>(skb, packet, &target, Counter::Masqueraded).into()
}

/// Notes a datagram that leaves with an address of the node and a port that a service has there:
/// its answers are not requests to that service. KUBE: conntrack knows the answers by their reply
/// tuple. If no service has this address and port, the datagram is itself an answer, and the next
/// request may be the service's again.
#[inline(never)]
fn own_datagram<F: Family>(
    packet: &mut Packet<F::Addr>,
    scratch: &mut Scratch<F::Addr>,
) -> Outcome {
    let now = helpers::now();
    let key = &mut packet.key;
    scratch.key.assign_reversed(key);
    *key = scratch.key;
    match flow::find::<F>(key, &mut scratch.other) {
        Some(found) => {
            if found.entry.kind == FlowKind::UNTOUCHED {
                let (state, protocol) = (found.entry.state, key.protocol);
                let change = change_by_backend(state, protocol, Signals::NONE, || true, || false);
                found.change(change, now);
            }
        }
        None if node::is_node_address::<F>(&key.dst)
            && lookup::record_of::<F>(key.dst, key.dst_port, key.protocol).is_some() =>
        {
            let entry = &mut scratch.entry;
            entry.begin(FlowKind::UNTOUCHED, ClientInterface::SHARED, now);
            (entry.address, entry.masquerade) = (key.src, key.src);
            flow::seal::<F>(entry, key);
            // If there is no room, ingress treats the answers as requests.
            _ = room::enter::<F>(key, scratch);
        }
        None => {}
    }
    Outcome::pass(Counter::Untouched)
}
