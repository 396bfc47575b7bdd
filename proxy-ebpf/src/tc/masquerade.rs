// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! Chooses the source port that a masqueraded flow leaves with, after `source` has chosen the
//! address. Called by `egress`.

mod local;
mod source;

pub use local::has_socket;

use proxy_common::{
    FlowKey, FlowKind, Port, Protocol,
    masquerade::{PORT_TRIES, PortRanges, reuse},
    ports as port_bits,
};

use super::{direct, rank::rank_of};
use crate::{
    family::Family,
    globals, helpers,
    maps::{
        flow::{self, Claim},
        node, ports,
        workspace::{EntryBuffer, Scratch},
    },
    packet::Skb,
};

by_family! {
    /// Chooses the source port for the flow of the packet in the workspace, whose reply entry is in
    /// `scratch.found`: enters the masqueraded reply, writes the choice into the reply entry and
    /// leaves that entry in `scratch.entry`. Returns [`CHOSEN`] on success.
    ///
    /// Two packets of one flow may run this at once. Both try the same ports in the same order, so
    /// the second finds the entry that the first has made, sees that it belongs to its own flow,
    /// and uses it.
    pub fn choose(skb) = portolan_choose_v4 portolan_choose_v6 of choose_port
}

#[inline(always)]
fn choose_port<F: Family>(skb: Skb) -> u32 {
    let (Some((packet, _, scratch)), Some(settings)) =
        (flow::filled_workspace::<F>(), node::settings())
    else {
        return FAILED;
    };
    let key = &packet.key;
    scratch.key.assign_reversed(key);
    scratch.key.set_ports(key.dst_port, Port::ANY);
    if !source::select::<F>(skb, packet, scratch) {
        return FAILED;
    }
    let Scratch { found, entry, .. } = &mut *scratch;
    // SAFETY: the caller has found the reply entry there.
    let reply = unsafe { found.assume_init_ref() };
    let before = Port(reply.reuse as u16);
    // One buffer serves for both entries: first for the masqueraded reply, then for the reply with
    // the choice noted.
    *entry = *reply;
    entry.kind = FlowKind::MASQUERADED_REPLY;
    (entry.address, entry.port) = (key.src, key.src_port);
    (entry.masquerade, entry.masquerade_port) = (reply.address, reply.port);
    if key.protocol == Protocol::TCP {
        // What the answer will acknowledge: `own` knows the SYN by it.
        entry.sequence = packet.first_number(skb).wrapping_add(1);
    }
    let mut search = Search {
        skb,
        key,
        scratch,
        ranges: &settings.masquerade_ports,
        hash: key.hash(),
        before,
        timestamp: 0,
        best: u64::MAX,
        result: FAILED,
    };
    helpers::repeat(PORT_TRIES, &mut search, attempt::<F>);
    if search.result == FAILED {
        search.timestamp = packet.timestamp(skb);
        helpers::repeat(TAKE_OVER_TRIES, &mut search, take_over::<F>);
    }
    let Search {
        scratch, result, ..
    } = search;
    if result != CHOSEN && result != FOUND {
        return result;
    }
    if result == CHOSEN {
        note_choice::<F>(key, scratch);
    }
    let Scratch {
        found,
        entry,
        key: tuple,
        ..
    } = scratch;
    // SAFETY: as above; the search does not change the reply entry.
    let reply = unsafe { found.assume_init_ref() };
    (entry.masquerade, entry.masquerade_port) = (tuple.dst, tuple.dst_port);
    (entry.kind, entry.sequence) = (FlowKind::REPLY, reply.sequence);
    (entry.address, entry.port) = (reply.address, reply.port);
    tuple.assign_reversed(key);
    flow::seal::<F>(entry, tuple);
    if flow::amend::<F>(tuple, entry) {
        CHOSEN
    } else {
        FAILED
    }
}

/// Notes the choice in the original entry too, so that ingress can translate both ends at once. The
/// result is not used.
#[inline(never)]
fn note_choice<F: Family>(key: &FlowKey<F::Addr>, scratch: &mut Scratch<F::Addr>) -> u32 {
    let Scratch {
        found,
        other,
        key: tuple,
        holder: reply_key,
        original: original_key,
        ..
    } = scratch;
    // SAFETY: the caller has found the reply entry there.
    let reply = unsafe { found.assume_init_ref() };
    reply_key.assign_reversed(key);
    reply.original_key_into(reply_key, original_key);
    if flow::find::<F>(original_key, other).is_none() {
        return FAILED;
    }
    // SAFETY: found just now.
    let original = unsafe { other.assume_init_mut() };
    if original.kind != FlowKind::ORIGINAL {
        return FAILED;
    }
    (original.masquerade, original.masquerade_port) = (tuple.dst, tuple.dst_port);
    flow::seal::<F>(original, original_key);
    flow::amend::<F>(original_key, original);
    CHOSEN
}

/// The search for a port that no other flow to this backend leaves with.
struct Search<'a, F: Family> {
    skb: Skb,
    key: &'a FlowKey<F::Addr>,
    /// The masqueraded reply's key and entry; also the keys of the reply and original entry of the
    /// flow that already uses a port, see [`rank_of`].
    scratch: &'a mut Scratch<F::Addr>,
    ranges: &'a PortRanges,
    hash: u32,
    /// The masquerade port of the previous flow from the same client port: the backend accepts it
    /// again, even in TIME_WAIT.
    before: Port,
    /// TCP timestamp of the packet; 0 if it has none or has not been read yet.
    timestamp: u32,
    /// The best of the ports in use so far: its rank, see [`reuse::rank`], above the number of its
    /// attempt.
    best: u64,
    result: u32,
}
pub const CHOSEN: u32 = 0;
const FAILED: u32 = 1;
/// Another packet of the flow has already chosen a port.
const FOUND: u32 = 3;
pub const FULL: u32 = 2;

/// Tries to claim the port of the previous flow, or else the `n`-th port. Returns 1 to stop.
extern "C" fn attempt<F: Family>(n: u64, search: &mut Search<'_, F>) -> u64 {
    let before = core::mem::replace(&mut search.before, Port::ANY);
    let candidate = if before.is_any() || !search.ranges.contains(before.host()) {
        let own = search.key.src_port;
        search.ranges.candidate(own, search.hash, n as u32)
    } else {
        Some(before)
    };
    let Some(port) = candidate else {
        return helpers::STOP;
    };
    // Where this node's address is also a frontend's (k3s' ServiceLB), other nodes would take the
    // answers to this port for requests; so would this node, if it is a node port. And it would
    // take answers to the port of outer headers for these.
    if ports::bits(port) & (port_bits::FRONTEND | port_bits::NODE_PORT) != 0
        || port == globals::header_port()
    {
        return 0;
    }
    search.scratch.key.dst_port = port;
    claim::<F>(search)
}

/// Enters the masqueraded reply with the port in its key, `scratch.key`. Returns 1 to stop, 0 if
/// the port is in use.
#[inline(never)]
fn claim<F: Family>(search: &mut Search<'_, F>) -> u64 {
    let Search {
        skb,
        key,
        scratch,
        result,
        ..
    } = search;
    let Scratch {
        key: tuple,
        entry,
        other,
        ..
    } = &mut **scratch;
    if is_in_use::<F>(*skb, tuple) {
        return 0;
    }
    ports::announce(tuple.dst_port, port_bits::MASQUERADE);
    flow::seal::<F>(entry, tuple);
    match flow::claim::<F>(tuple, entry) {
        Claim::Ours => *result = CHOSEN,
        Claim::Full => *result = FULL,
        Claim::Taken if is_own::<F>(tuple, key, other) => *result = FOUND,
        Claim::Taken => return 0,
    }
    helpers::STOP
}

/// Whether a port belongs to a socket of the node, or to a connection that other rules have
/// masqueraded. `tuple` is the key of the answers to that port.
#[inline(always)]
pub fn is_in_use<F: Family>(skb: Skb, tuple: &FlowKey<F::Addr>) -> bool {
    has_socket::<F>(skb, tuple) || tuple.protocol != Protocol::UDP && direct::is_recalled(tuple)
}

/// Puts the `n`-th port into the masqueraded reply's key; false if there is no port.
#[inline(always)]
fn set_port<F: Family>(n: u64, search: &mut Search<'_, F>) -> bool {
    let Search {
        key, ranges, hash, ..
    } = search;
    match ranges.candidate(key.src_port, *hash, n as u32) {
        Some(port) => {
            search.scratch.key.dst_port = port;
            true
        }
        None => false,
    }
}

/// Rates the flow that uses the `n`-th port, because a closed flow may be replaced. Returns 1 to
/// stop.
extern "C" fn rate<F: Family>(n: u64, search: &mut Search<'_, F>) -> u64 {
    if !set_port::<F>(n, search) {
        return helpers::STOP;
    }
    let rank = rank_of::<F>(search.scratch, search.timestamp);
    let rated = (rank as u64) << RANK_SHIFT | n;
    if rank != reuse::NEVER && rated < search.best {
        search.best = rated;
    }
    0
}

/// Replaces the flow that uses the best port. If another CPU takes that port first, returns 0, so
/// that the next best port is tried; else 1.
extern "C" fn take_over<F: Family>(_: u64, search: &mut Search<'_, F>) -> u64 {
    search.best = u64::MAX;
    helpers::repeat(PORT_TRIES, search, rate::<F>);
    if search.best == u64::MAX {
        return helpers::STOP;
    }
    let n = search.best & ((1 << RANK_SHIFT) - 1);
    if !set_port::<F>(n, search) {
        return helpers::STOP;
    }
    // The flow is rated once more, which finds its keys again. The port may belong to another flow
    // by now, with a worse rank. The rank of the same flow can only have become better with its
    // age.
    if rank_of::<F>(search.scratch, search.timestamp) as u64 > search.best >> RANK_SHIFT {
        return 0;
    }
    // Of two CPUs that have chosen this port, only one finds the original entry still there.
    let Scratch {
        key: tuple,
        holder,
        original,
        ..
    } = &*search.scratch;
    if !flow::remove::<F>(original) {
        return 0;
    }
    flow::remove::<F>(holder);
    flow::remove::<F>(tuple);
    claim::<F>(search)
}

/// If all ports tried are in use: how often to try to replace another flow that may be replaced,
/// such as a closed one, and to use its port. Each try chooses the best port anew; it fails if
/// another CPU is faster.
const TAKE_OVER_TRIES: u32 = 4;
/// Number of bits for the number of an attempt, below the rank.
const RANK_SHIFT: u32 = 8;

/// Whether the entry under a masqueraded reply's tuple already belongs to the flow whose client
/// packets have `key`.
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
