// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! The entry of a flow that another node carries to an endpoint of this node: made and accounted by
//! packets that have come with an outer header (`tc::take_off`), accounted by the endpoint's
//! answers (`tc::egress`).

use proxy_common::{
    Addr, Counter, FlowKind, FlowState, Protocol, ServiceId,
    flow::{
        Change, ClientInterface, change_by_backend, change_by_client, proves_answer, takes_answer,
    },
    maps::generation,
    ports as port_bits,
};

use super::{
    flow::{self, Claim, Found},
    node, ports, room,
    tables::Tables,
    workspace::{Clock, Scratch},
};
use crate::packet::{Packet, Skb};

/// How long the flow of another node's client must have been silent, in nanoseconds, before a
/// packet of a third node begins another one.
const SILENCE: u64 = 60_000_000_000;

/// What is counted for a carried packet of a flow that these maps do not have: untouched if the
/// programs that have taken over decide.
#[inline(always)]
pub fn unknown() -> Option<Counter> {
    node::is_in_succession(generation::DRAINED).then_some(Counter::Untouched)
}

/// Notes that the node with the address in `scratch.holder.src` carries the flow of the packet in
/// the workspace; returns what is counted where that is not so, see [`unknown`].
#[inline(always)]
pub fn note<T: Tables>(
    skb: Skb,
    packet: &Packet<T::Addr>,
    clock: &mut Clock,
    scratch: &mut Scratch<T::Addr>,
) -> Option<Counter> {
    let (now, protocol, signals) = (clock.now(), packet.key.protocol, packet.signals);
    scratch.key.assign_reversed(&packet.key);
    if let Some(found) = flow::find::<T>(&scratch.key, &mut scratch.found) {
        let entry = found.entry;
        if entry.kind != FlowKind::CARRIED {
            return Some(Counter::DroppedSameEnds);
        }
        let begins = protocol != Protocol::UDP && signals.begins();
        let is_over = entry.state.is_closing() || now.wrapping_sub(entry.last_seen) > SILENCE;
        let is_same = entry.masquerade == scratch.holder.src;
        if !is_same && protocol != Protocol::UDP && !(begins && is_over) {
            return Some(Counter::DroppedSameEnds);
        }
        let change = if begins && is_over {
            Change {
                set: FlowState::NEW,
                clear: FlowState(u32::MAX),
            }
        } else {
            let proven = || match protocol {
                Protocol::TCP => proves_answer(packet.acknowledgement(skb), entry.sequence),
                _ => packet.tag(skb) == entry.sequence,
            };
            change_by_client(entry.state, protocol, signals, || true, proven, || true)
        };
        found.change(change, now);
        if !is_same {
            // SAFETY: found above.
            let entry = unsafe { scratch.found.assume_init_mut() };
            entry.masquerade.assign(&scratch.holder.src);
            flow::seal::<T>(entry, &scratch.key);
            flow::amend::<T>(&scratch.key, entry);
        }
        return None;
    }
    if let Some(counter) = unknown() {
        return Some(counter);
    }
    // Egress looks for answers from this port.
    ports::announce(packet.key.dst_port, port_bits::REPLY);
    let entry = &mut scratch.entry;
    entry.begin(FlowKind::CARRIED, ClientInterface::SHARED, now);
    entry.masquerade.assign(&scratch.holder.src);
    entry.client_port = packet.key.src_port;
    entry.service = ServiceId::NONE;
    if protocol == Protocol::TCP && !signals.begins() {
        // In the middle of a connection, whose entry has been removed: it is as good as
        // established.
        entry.state = FlowState::ESTABLISHED;
    }
    flow::seal::<T>(entry, &scratch.key);
    let mut claim = flow::claim::<T>(&scratch.key, &scratch.entry);
    if matches!(claim, Claim::Full) {
        let tuple = &raw const scratch.key;
        room::make::<T>(tuple, scratch);
        claim = flow::claim::<T>(&scratch.key, &scratch.entry);
    }
    // If it is taken, another packet of the flow was faster.
    matches!(claim, Claim::Full).then_some(Counter::DroppedFlowTableFull)
}

/// Accounts an endpoint's answer in the entry of its flow.
#[inline(always)]
pub fn account_reply<A: Addr>(skb: Skb, packet: &Packet<A>, found: &Found<'_, A>, now: u64) {
    let (protocol, signals, state) = (packet.key.protocol, packet.signals, found.entry.state);
    if takes_answer(state, signals) {
        let next = match protocol {
            // SYN counts as one byte.
            Protocol::TCP => packet.sequence(skb).wrapping_add(1),
            _ => packet.initiate_tag(skb),
        };
        found.element.set_sequence(next);
    }
    let carries_data = || packet.carries_data(skb);
    let change = change_by_backend(state, protocol, signals, || true, carries_data);
    found.change(change, now);
}
