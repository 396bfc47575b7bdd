// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! Connections to a backend that leave with the node's address and are not flows of a service:
//! connections of the node's processes, direct ones or translated at their socket; and TCP
//! connections that the node's rules masquerade, as a CNI's do. If such a connection begins with
//! the tuple that a flow has left with, that flow would get the connection's answers. So the
//! connection leaves with another source port: as a flow of no service, whose client is the node.
//! If a masqueraded flow has the tuple and has ended, it is removed instead. A flow that begins
//! later avoids the ports of the node's sockets, and the connections that this module has seen
//! begin (`masquerade`).

use proxy_common::{
    Counter, FlowEntry, FlowKey, FlowKind, Port, Protocol,
    flow::{Anew, ClientInterface, begins_anew, may_begin},
    maps::generation,
    masquerade::{PORT_TRIES, reuse},
    ports as port_bits,
};

use crate::{
    count::Outcome,
    family::Family,
    globals,
    maps::{
        flow::{self, Claim},
        node, ports, room,
        slots::{FULL, OURS},
        workspace::{Clock, Scratch},
    },
    packet::{NatTarget, Packet, Skb},
    tc::{
        direct,
        masquerade::{has_socket, is_in_use},
        rank::rank_of,
        translate,
    },
};

by_family! {
    /// Decides about the packet in the workspace, which leaves from a port that masqueraded flows
    /// use.
    own portolan_own_v4 portolan_own_v6 = decide_on -> Outcome
}

#[inline(always)]
fn decide_on<F: Family>(skb: Skb) -> Outcome {
    let (Some((packet, clock, scratch)), Some(settings)) =
        (flow::filled_workspace::<F>(), node::settings())
    else {
        return Outcome::pass(Counter::Untouched);
    };
    packet.key.set_interface(ClientInterface::NODE);
    if let Some(outcome) = follow::<F>(skb, packet, clock, scratch) {
        return outcome;
    }
    let key = &packet.key;
    // Also once no agent has come for long: nothing else removes flows then whose answers another
    // proxy's connections would get.
    if !may_begin(key.protocol, packet.signals)
        || node::is_in_succession(generation::DRAINED | generation::BEHIND)
    {
        return Outcome::pass(Counter::Untouched);
    }
    scratch.key.assign_reversed(key);
    let Some(held) = holder::<F>(scratch) else {
        return pass_noted::<F>(skb, key, scratch);
    };
    // A packet with our mark was not masqueraded by us, nor was one of the node's own. Any other
    // may be the flow's own SYN, masqueraded at an interface above this one, such as a VLAN's.
    if !skb.is_own()
        && skb.mark() & globals::masquerade_marks() == 0
        && held.sequence == packet.first_number(skb).wrapping_add(1)
    {
        return Outcome::pass(Counter::Untouched);
    }
    if reuse::is_over(rank_of::<F>(scratch, 0)) {
        release::<F>(scratch);
        return pass_noted::<F>(skb, key, scratch);
    }
    let is_usable = |answers: &FlowKey<F::Addr>| {
        // As in `masquerade`: answers to such a port would be taken for something else.
        let port = answers.dst_port;
        let is_free = ports::bits(port) & (port_bits::FRONTEND | port_bits::NODE_PORT) == 0
            && port != globals::header_port()
            && !is_in_use::<F>(skb, answers);
        if is_free {
            ports::announce(port, port_bits::MASQUERADE);
        }
        is_free
    };
    let result = direct::claim_port::<F, _>(key, settings, scratch, PORT_TRIES, is_usable);
    if result != OURS {
        scratch.key.assign_reversed(key);
        if rank_of::<F>(scratch, 0) == reuse::NEVER {
            let counter = if result == FULL {
                Counter::DroppedFlowTableFull
            } else {
                Counter::DroppedNoMasqueradePort
            };
            return Outcome::drop(counter);
        }
        release::<F>(scratch);
        return pass_noted::<F>(skb, key, scratch);
    }
    let mut port = scratch.key.dst_port;
    scratch.entry.kind = FlowKind::ORIGINAL;
    scratch.entry.client_port = port;
    flow::seal::<F>(&mut scratch.entry, key);
    if !matches!(room::enter::<F>(key, scratch), Claim::Ours) {
        flow::remove::<F>(&scratch.key);
        match flow::find::<F>(key, &mut scratch.found) {
            // Another packet of the same conversation has entered the flow first.
            Some(first) => port = first.entry.client_port,
            None => return Outcome::drop(Counter::DroppedFlowTableFull),
        }
    }
    leave::<F>(skb, packet, port)
}

/// Lets the packet pass unchanged; `scratch.key` has the key of the packet's answers. A flow that
/// begins later avoids this tuple. It finds a connection of the node's by its socket, unless the
/// node's rules masquerade it, too, and other connections by the entry that this function makes in
/// the map `direct`.
#[inline(always)]
fn pass_noted<F: Family>(skb: Skb, key: &FlowKey<F::Addr>, scratch: &Scratch<F::Addr>) -> Outcome {
    let has_socket = || skb.is_own() && has_socket::<F>(skb, &scratch.key);
    if key.protocol != Protocol::UDP && node::is_node_address::<F>(&key.src) && !has_socket() {
        direct::note(&scratch.key);
    }
    Outcome::pass(Counter::Untouched)
}

/// Removes the masqueraded flow that [`rank_of`] has rated, because its tuple now belongs to this
/// packet's connection. Late packets of that flow's client belong to no flow then.
#[inline(always)]
fn release<F: Family>(scratch: &Scratch<F::Addr>) {
    // The original entry first: another CPU may be taking the port over.
    if flow::remove::<F>(&scratch.original) {
        flow::remove::<F>(&scratch.holder);
        flow::remove::<F>(&scratch.key);
    }
}

/// Sends on a packet of a known flow of the node. `None` if there is no flow, or if the packet
/// begins another flow.
#[inline(always)]
fn follow<F: Family>(
    skb: Skb,
    packet: &Packet<F::Addr>,
    clock: &mut Clock,
    scratch: &mut Scratch<F::Addr>,
) -> Option<Outcome> {
    let Scratch {
        found, other, key, ..
    } = &mut *scratch;
    let found = flow::find::<F>(&packet.key, found)?;
    let entry = found.entry;
    let (protocol, signals) = (packet.key.protocol, packet.signals);
    if matches!(
        begins_anew(protocol, signals, entry.state, || false, || true, || true),
        Anew::Ended
    ) {
        flow::remove_all::<F>(&packet.key, scratch);
        return None;
    }
    flow::account::<F>(skb, packet, &found, clock.now(), key, other);
    Some(leave::<F>(skb, packet, entry.client_port))
}

/// Returns the entry by which another flow would get the packet's answers, whose key is in
/// `scratch.key`: a masqueraded flow's, or that of a flow that this module has given another source
/// port.
#[inline(always)]
fn holder<F: Family>(scratch: &mut Scratch<F::Addr>) -> Option<&FlowEntry<F::Addr>> {
    let held = flow::find::<F>(&scratch.key, &mut scratch.other)?.entry;
    let is_other = held.kind == FlowKind::MASQUERADED_REPLY
        || held.kind == FlowKind::REPLY && held.interface == ClientInterface::NODE;
    is_other.then_some(held)
}

/// Lets the packet leave with `port` as its source port.
#[inline(always)]
fn leave<F: Family>(skb: Skb, packet: &Packet<F::Addr>, port: Port) -> Outcome {
    let target = NatTarget {
        address: packet.key.src,
        port,
        other_port: packet.key.dst_port,
    };
    translate::source::<F>(skb, packet, &target, Counter::Masqueraded)
}
