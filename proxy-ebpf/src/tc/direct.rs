// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! Direct conversations with a backend, not through a service: the client addresses the backend
//! itself, or its socket was given the backend's address. The backend cannot tell such a packet
//! from a packet of a flow with the same client port, so a direct conversation and a flow never
//! share a port:
//!
//! - if a flow already has the tuple of a conversation that begins, the conversation leaves with
//!   another source port, as a flow of no service;
//! - a flow that begins later avoids the conversation's tuple (`is_recalled`).

use proxy_common::{
    Addr, Counter, FlowKey, FlowKind, Port, Protocol, masquerade::PortRanges, ports as port_bits,
};

use super::{step::Step, translate};
use crate::{
    count::Outcome,
    family::Family,
    globals, helpers,
    maps::{
        DIRECT,
        flow::{self, Claim},
        node, occupied, ports, room,
        workspace::{Scratch, Workspace},
    },
    packet::Skb,
};

/// How many source ports are tried.
const PORT_TRIES: u32 = 8;

by_family! {
    /// Decides about the packet in the workspace, which may begin a direct conversation.
    direct portolan_direct_v4 portolan_direct_v6 = decide_on -> Step
}

#[inline(always)]
fn decide_on<F: Family>(skb: Skb) -> Step {
    let (
        Some(Workspace {
            packet, scratch, ..
        }),
        Some(settings),
    ) = (flow::filled_workspace::<F>(), node::settings())
    else {
        return Step::untouched();
    };
    let key = &packet.key;
    scratch.key.assign_reversed(key);
    // The programs before these may know nothing of a conversation that gets another port here.
    if node::is_behind() || !is_taken::<F>(key, scratch) {
        if key.protocol != Protocol::UDP {
            note(&scratch.key);
        }
        return Step::untouched();
    }
    ports::announce(key.dst_port, port_bits::DIRECT);
    let mut search = Search::<F> {
        hash: key.hash(),
        ranges: &settings.masquerade_ports,
        scratch,
        result: TAKEN,
    };
    fill_reply::<F>(search.scratch, key);
    helpers::repeat(PORT_TRIES, &mut search, attempt::<F>);
    if search.result == FULL {
        let tuple = &raw const search.scratch.key;
        room::make::<F>(tuple, search.scratch);
        helpers::repeat(PORT_TRIES, &mut search, attempt::<F>);
    }
    let Search {
        scratch, result, ..
    } = search;
    if result != OURS {
        // The conversation may still work: the flow that has the tuple may have ended.
        return Step::untouched();
    }
    let entry = &mut scratch.entry;
    entry.kind = FlowKind::ORIGINAL;
    (entry.address, entry.port) = (key.dst, key.dst_port);
    entry.client_port = scratch.key.dst_port;
    if key.protocol != Protocol::UDP {
        entry.sequence = packet.first_number(skb);
    }
    flow::seal::<F>(entry, key);
    if !matches!(room::enter::<F>(key, scratch), Claim::Ours) {
        // Another packet of the same conversation was faster, or the table is full.
        flow::remove::<F>(&scratch.key);
        return Outcome::drop(Counter::DroppedNoTuple).into();
    }
    let entry = &scratch.entry;
    if globals::redirects() {
        return Step::send(true, Counter::ForwardedNew);
    }
    translate::to_backend::<F>(skb, packet, entry, Counter::ForwardedNew).into()
}

/// Whether a living flow of this client has the key of the conversation's replies, which is in
/// `scratch.key`. If that flow has ended, its remaining entries are removed.
#[inline(always)]
fn is_taken<F: Family>(key: &FlowKey<F::Addr>, scratch: &mut Scratch<F::Addr>) -> bool {
    match flow::find::<F>(&scratch.key, &mut scratch.other) {
        Some(held)
            if held.entry.kind == FlowKind::REPLY && held.entry.interface == key.interface() => {}
        _ => return false,
    }
    scratch.entry.last_seen = helpers::now();
    scratch.insists = 0;
    if occupied::is_held::<F>(scratch) {
        return true;
    }
    flow::remove::<F>(&scratch.key);
    false
}

/// The search for a source port that no other flow to this backend has.
struct Search<'a, F: Family> {
    scratch: &'a mut Scratch<F::Addr>,
    ranges: &'a PortRanges,
    hash: u32,
    result: u32,
}
const OURS: u32 = 0;
const TAKEN: u32 = 1;
const FULL: u32 = 2;

extern "C" fn attempt<F: Family>(n: u64, search: &mut Search<'_, F>) -> u64 {
    let Search {
        scratch,
        ranges,
        hash,
        result,
    } = search;
    let Some(port) = ranges.candidate(Port::ANY, *hash, n as u32) else {
        return helpers::STOP;
    };
    let Scratch { key, entry, .. } = &mut **scratch;
    key.set_ports(key.src_port, port);
    flow::seal::<F>(entry, key);
    *result = match flow::claim::<F>(key, entry) {
        Claim::Taken => return 0,
        Claim::Ours => OURS,
        Claim::Full => FULL,
    };
    helpers::STOP
}

/// Makes the entry of the replies in `scratch.entry`, without its check word. `key` is the key of
/// the client's packets.
#[inline(always)]
pub fn fill_reply<F: Family>(scratch: &mut Scratch<F::Addr>, key: &FlowKey<F::Addr>) {
    let entry = &mut scratch.entry;
    entry.begin(FlowKind::REPLY, key.interface(), helpers::now());
    (entry.port, entry.client_port) = (key.dst_port, key.src_port);
    entry.address.assign(&key.dst);
}

/// Stores a direct connection in the map `direct` by the key of its replies. A later connection may
/// overwrite it.
#[inline(always)]
pub fn note<A: Addr>(reply: &FlowKey<A>) {
    let (place, fingerprint) = reply.fingerprint();
    if let Some(slot) = DIRECT.get_ptr_mut(place) {
        // SAFETY: an aligned word of a live element; a single store.
        unsafe { slot.write_volatile(fingerprint) };
    }
}

/// Whether the map `direct` has a direct connection whose replies may have this key.
#[inline(always)]
pub fn is_recalled<A: Addr>(reply: &FlowKey<A>) -> bool {
    let (place, fingerprint) = reply.fingerprint();
    DIRECT.get(place).is_some_and(|known| *known == fingerprint)
}
