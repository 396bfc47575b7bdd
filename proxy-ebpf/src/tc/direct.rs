// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! Conversations past every service: a client that addresses a backend itself, or whose socket was given its address. The
//! backend cannot tell such a packet from one of a flow with the same client's port, so the two never share a port:
//!
//! - one that begins while a flow has its tuple leaves with another source port, as a flow of no service;
//! - a flow that begins later avoids the tuple (`is_recalled`).

use proxy_common::{
    BackendId, Counter, FlowEntry, FlowKey, FlowKind, FlowState, Port, Protocol, ServiceId,
    flow::{SPARE, ring::Ring},
    masquerade::PortRanges,
    ports as port_bits,
};

use super::translate;
use crate::{
    count::Outcome,
    family::Family,
    globals, helpers,
    maps::{
        DIRECT,
        flow::{self, Claim},
        held, node, ports, ring,
        workspace::{Scratch, Workspace},
    },
    packet::Skb,
};

/// Source ports that are tried.
const PORT_TRIES: u32 = 8;

by_family! {
    /// The packet in the workspace, which may begin a conversation past every service.
    direct portolan_direct_v4 portolan_direct_v6 = decide_on
}

#[inline(always)]
fn decide_on<F: Family>(skb: Skb) -> Outcome {
    let (
        Some(Workspace {
            packet, scratch, ..
        }),
        Some(settings),
    ) = (flow::filled_workspace::<F>(), node::settings())
    else {
        return Outcome::pass(Counter::Untouched);
    };
    let key = &packet.key;
    scratch.key.assign_reversed(key);
    if !is_taken::<F>(key, scratch) {
        if key.protocol != Protocol::UDP {
            note(&scratch.key);
        }
        return Outcome::pass(Counter::Untouched);
    }
    // A packet of the very flow that has the tuple looks like this once it is translated.
    if node::is_behind() {
        return Outcome::pass(Counter::Untouched);
    }
    ports::announce(key.dst_port, port_bits::DIRECT);
    scratch.slot = ring::push::<F>(Ring::of_new(key.protocol), key, scratch);
    scratch.key.assign_reversed(key);
    let mut search = Search::<F> {
        hash: key.hash(),
        ranges: &settings.masquerade_ports,
        scratch,
        claimed: false,
    };
    fill_reply::<F>(search.scratch, key);
    helpers::repeat(PORT_TRIES, &mut search, attempt::<F>);
    let Search {
        scratch, claimed, ..
    } = search;
    if !claimed {
        // It may still go well: the flow that has the tuple may be over, too.
        return Outcome::pass(Counter::Untouched);
    }
    let entry = &mut scratch.entry;
    entry.kind = FlowKind::ORIGINAL;
    (entry.address, entry.port) = (key.dst, key.dst_port);
    entry.client_port = scratch.key.dst_port;
    if key.protocol != Protocol::UDP {
        entry.sequence = packet.first_number(skb);
    }
    flow::seal::<F>(entry, key);
    if !matches!(flow::claim::<F>(key, entry), Claim::Ours) {
        // Another packet of the same conversation was faster, or the table is full.
        flow::remove::<F>(&scratch.key);
        return Outcome::drop(Counter::DroppedNoTuple);
    }
    if globals::redirects() {
        return Outcome::send(true, Counter::ForwardedNew);
    }
    translate::to_backend::<F>(skb, packet, entry, Counter::ForwardedNew)
}

/// Whether a living flow of this client holds the key of the replies, which is in `scratch.key`. The remains of one that is over
/// are removed.
#[inline(always)]
fn is_taken<F: Family>(key: &FlowKey<F::Addr>, scratch: &mut Scratch<F::Addr>) -> bool {
    match flow::find::<F>(&scratch.key, &mut scratch.other) {
        Some(held)
            if held.entry.kind == FlowKind::REPLY && held.entry.interface == key.interface() => {}
        _ => return false,
    }
    scratch.entry.last_seen = helpers::now();
    scratch.insists = 0;
    if held::is_held::<F>(scratch) {
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
    claimed: bool,
}

extern "C" fn attempt<F: Family>(n: u64, search: &mut Search<'_, F>) -> u64 {
    const STOP: u64 = 1;
    let Search {
        scratch,
        ranges,
        hash,
        claimed,
    } = search;
    let Some(port) = ranges.candidate(Port::ANY, *hash, n as u32) else {
        return STOP;
    };
    let Scratch { key, entry, .. } = &mut **scratch;
    key.set_ports(key.src_port, port);
    flow::seal::<F>(entry, key);
    match flow::claim::<F>(key, entry) {
        Claim::Taken => 0,
        Claim::Ours => {
            *claimed = true;
            STOP
        }
        Claim::Full => STOP,
    }
}

/// Makes the entry of the replies in `scratch.entry`, without its check word.
#[inline(always)]
pub fn fill_reply<F: Family>(scratch: &mut Scratch<F::Addr>, key: &FlowKey<F::Addr>) {
    scratch.entry = FlowEntry {
        check: 0,
        kind: FlowKind::REPLY,
        flags: 0,
        port: key.dst_port,
        address: key.dst,
        masquerade: <F::Addr as proxy_common::Addr>::UNSPECIFIED,
        client_port: key.src_port,
        masquerade_port: Port::ANY,
        service: ServiceId::NONE,
        backend: BackendId(0),
        generation: 0,
        interface: key.interface(),
        state: FlowState::NEW,
        last_seen: helpers::now(),
        sequence: 0,
        reuse: 0,
        slot: scratch.slot,
        _pad: SPARE,
    };
}

/// Notes a connection past every service by the key of its replies. A later one may overwrite it.
#[inline(always)]
fn note<A: proxy_common::Addr>(reply: &FlowKey<A>) {
    let (place, fingerprint) = reply.fingerprint();
    if let Some(slot) = DIRECT.get_ptr_mut(place) {
        // SAFETY: an aligned word of a live element; a single store.
        unsafe { slot.write_volatile(fingerprint) };
    }
}

/// Whether a connection past every service may have replies with this key.
#[inline(always)]
pub fn is_recalled<A: proxy_common::Addr>(reply: &FlowKey<A>) -> bool {
    let (place, fingerprint) = reply.fingerprint();
    DIRECT.get(place).is_some_and(|known| *known == fingerprint)
}
