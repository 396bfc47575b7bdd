// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! Chooses the source address and port that a masqueraded flow leaves with. Called by `egress`.

use proxy_common::{
    Addr, FlowEntry, FlowKey, FlowKind, Port, Settings,
    maps::interface,
    masquerade::{PORT_TRIES, PortRanges},
    ports as port_bits,
};

use crate::{
    family::Family,
    helpers,
    maps::{
        MASQUERADE_SOURCES,
        flow::{self, Claim},
        node, ports,
        workspace::{EntryBuffer, Scratch},
    },
    packet::{Packet, Skb},
};

/// Chooses for the flow whose reply entry is in `scratch.found`: enters the masqueraded reply, writes the choice into the
/// reply entry and leaves that in `scratch.entry`. 0 on success.
///
/// Two packets of one flow may come here at once. Both try the same ports in the same order, so the second finds the first's
/// entry, sees that it belongs to its own flow, and uses it.
#[inline(never)]
pub fn choose<F: Family>(
    skb: Skb,
    packet: &Packet<F::Addr>,
    scratch: &mut Scratch<F::Addr>,
) -> u32 {
    let Some(settings) = node::settings() else {
        return FAILED;
    };
    let Some(address) = address_for::<F>(skb, settings) else {
        return FAILED;
    };
    let key = &packet.key;
    let Scratch {
        found,
        other,
        entry,
        key: tuple,
        ..
    } = scratch;
    // SAFETY: the caller has found the reply entry there.
    let reply = unsafe { found.assume_init_ref() };
    tuple.assign(&key.dst, key.dst_port, &address, Port::ANY, key.protocol);
    // One entry serves for both: the masqueraded reply first, then the reply with the choice noted.
    *entry = *reply;
    entry.kind = FlowKind::MASQUERADED_REPLY;
    (entry.address, entry.port) = (key.src, key.src_port);
    let hash = key.hash();
    let mut search = Search {
        key,
        tuple,
        entry,
        other,
        ranges: &settings.masquerade_ports,
        hash,
        result: FAILED,
    };
    helpers::repeat(PORT_TRIES, &mut search, attempt::<F>);
    let Search {
        tuple,
        entry,
        result,
        ..
    } = search;
    if result != CHOSEN {
        return FAILED;
    }
    (entry.masquerade, entry.masquerade_port) = (tuple.dst, tuple.dst_port);
    entry.kind = FlowKind::REPLY;
    (entry.address, entry.port) = (reply.address, reply.port);
    tuple.assign_reversed(key);
    flow::seal::<F>(entry, tuple);
    if flow::replace::<F>(tuple, entry) {
        CHOSEN
    } else {
        FAILED
    }
}

/// The search for a port that no other flow to this backend leaves with.
struct Search<'a, F: Family> {
    key: &'a FlowKey<F::Addr>,
    tuple: &'a mut FlowKey<F::Addr>,
    entry: &'a mut FlowEntry<F::Addr>,
    other: &'a mut EntryBuffer<F::Addr>,
    ranges: &'a PortRanges,
    hash: u32,
    result: u32,
}
const CHOSEN: u32 = 0;
const FAILED: u32 = 1;

extern "C" fn attempt<F: Family>(n: u64, search: &mut Search<'_, F>) -> u64 {
    const STOP: u64 = 1;
    let Search {
        key,
        tuple,
        entry,
        other,
        ranges,
        hash,
        result,
    } = search;
    let Some(port) = ranges.candidate(key.src_port, *hash, n as u32) else {
        return STOP;
    };
    tuple.dst_port = port;
    ports::announce(port, port_bits::MASQUERADE);
    flow::seal::<F>(entry, tuple);
    match flow::claim::<F>(tuple, entry) {
        Claim::Ours => *result = CHOSEN,
        Claim::Full => {}
        Claim::Taken if is_own::<F>(tuple, key, other) => *result = CHOSEN,
        Claim::Taken => return 0,
    }
    STOP
}

/// Whether the entry under a masqueraded reply's tuple belongs to the flow `key` already.
#[inline(always)]
fn is_own<F: Family>(
    tuple: &FlowKey<F::Addr>,
    key: &FlowKey<F::Addr>,
    buffer: &mut EntryBuffer<F::Addr>,
) -> bool {
    flow::find::<F>(tuple, buffer).is_some_and(|held| {
        held.entry.kind == FlowKind::MASQUERADED_REPLY
            && held.entry.address == key.src
            && held.entry.port == key.src_port
    })
}

/// The outgoing interface's own address, else the node's InternalIP.
#[inline(always)]
fn address_for<F: Family>(skb: Skb, settings: &Settings) -> Option<F::Addr> {
    let index = node::interface(skb.interface()) & interface::SOURCE;
    let own = MASQUERADE_SOURCES
        .get(index)
        .map_or(F::Addr::UNSPECIFIED, F::masquerade_address);
    let address = if own == F::Addr::UNSPECIFIED {
        F::internal_address(settings)
    } else {
        own
    };
    (address != F::Addr::UNSPECIFIED).then_some(address)
}
