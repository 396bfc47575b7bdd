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
    Addr, Counter, FlowKey, FlowKind, Port, Protocol, Settings, masquerade::PortRanges,
    ports as port_bits,
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
        slots::{FULL, OURS, TAKEN},
        workspace::Scratch,
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
    let (Some((packet, _, scratch)), Some(settings)) =
        (flow::filled_workspace::<F>(), node::settings())
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
    if claim_port::<F, _>(key, settings, scratch, PORT_TRIES, |_| true) != OURS {
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
struct Search<'a, F: Family, U> {
    scratch: &'a mut Scratch<F::Addr>,
    ranges: &'a PortRanges,
    hash: u32,
    is_usable: U,
    result: u32,
}

/// Gives the packets with `key` another source port: enters the entry of their replies under the
/// reply key in `scratch`, whose port it sets. `is_usable` gets that key, with a port that is about
/// to be tried. Returns [`OURS`], [`TAKEN`] or [`FULL`].
#[inline(always)]
pub fn claim_port<F: Family, U: Fn(&FlowKey<F::Addr>) -> bool>(
    key: &FlowKey<F::Addr>,
    settings: &Settings,
    scratch: &mut Scratch<F::Addr>,
    tries: u32,
    is_usable: U,
) -> u32 {
    let entry = &mut scratch.entry;
    entry.begin(FlowKind::REPLY, key.interface(), helpers::now());
    (entry.port, entry.client_port) = (key.dst_port, key.src_port);
    entry.address.assign(&key.dst);
    let mut search = Search::<F, U> {
        scratch,
        ranges: &settings.masquerade_ports,
        hash: key.hash(),
        is_usable,
        result: TAKEN,
    };
    helpers::repeat(tries, &mut search, attempt::<F, U>);
    if search.result == FULL {
        let tuple = &raw const search.scratch.key;
        room::make::<F>(tuple, search.scratch);
        helpers::repeat(tries, &mut search, attempt::<F, U>);
    }
    search.result
}

extern "C" fn attempt<F: Family, U: Fn(&FlowKey<F::Addr>) -> bool>(
    n: u64,
    search: &mut Search<'_, F, U>,
) -> u64 {
    let Some(port) = search.ranges.candidate(Port::ANY, search.hash, n as u32) else {
        return helpers::STOP;
    };
    let Scratch { key, entry, .. } = &mut *search.scratch;
    key.set_ports(key.src_port, port);
    if !(search.is_usable)(key) {
        return 0;
    }
    flow::seal::<F>(entry, key);
    search.result = match flow::claim::<F>(key, entry) {
        Claim::Taken => return 0,
        Claim::Ours => OURS,
        Claim::Full => FULL,
    };
    helpers::STOP
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
