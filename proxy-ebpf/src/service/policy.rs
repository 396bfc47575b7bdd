// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! The verdict on a new connection: collects the arguments of `proxy_common::decide`. Called by
//! `begin` and the socket hooks.

use aya_ebpf::btf_maps::lpm_trie::Key;
use proxy_common::{
    Addr, Block, Counter, FrontendKind, Origin, Record, ServiceFlags, Settings, Verdict, decide,
    origin_of_packet, service::SourceRangeKey,
};

use crate::{
    maps::{node, tables::Tables},
    packet::Skb,
};

/// Returns the verdict on a flow's first packet.
#[inline(always)]
pub fn verdict_on_packet<T: Tables>(
    skb: Skb,
    record: &Record<T::Addr>,
    source: T::Addr,
    settings: &Settings,
) -> Verdict {
    let origin = origin_of_packet::<T::Addr>(
        settings,
        record.flags,
        || node::portolan_has_pods(skb.interface()) != 0,
        || T::is_pod(settings, source),
        || node::is_node_address::<T>(&source),
    );
    verdict::<T>(record, origin, source, settings)
}

/// Returns the verdict on a connection of known origin; `source` is read only for frontends with
/// source ranges.
#[inline(always)]
pub fn verdict<T: Tables>(
    record: &Record<T::Addr>,
    origin: Origin,
    source: T::Addr,
    settings: &Settings,
) -> Verdict {
    let source_allowed = !record.flags.has(ServiceFlags::SOURCE_RANGES) || {
        let range = SourceRangeKey {
            service: record.service,
            address: source,
        };
        T::source_ranges()
            .get(&Key::new(32 + T::Addr::BITS, range))
            .is_some()
    };
    decide(
        record.flags,
        origin,
        settings.policy::<T::Addr>(),
        block_of(record, false).count() != 0,
        block_of(record, true).count() != 0,
        source_allowed,
    )
}

/// Returns the counter for a rejection by this record.
#[inline(always)]
pub fn rejection_of<A: Addr>(record: &Record<A>) -> Counter {
    match record.flags.kind() {
        FrontendKind::Unserved => Counter::RejectedUnserved,
        _ => Counter::RejectedNoEndpoint,
    }
}

/// Returns a record's external or internal block, loaded as one word because the agent may be
/// storing another.
#[inline(always)]
pub fn block_of<A: Addr>(record: &Record<A>, external: bool) -> Block {
    let block = if external {
        &record.external
    } else {
        &record.internal
    };
    // SAFETY: an aligned word of a live array element.
    unsafe { core::ptr::from_ref(block).read_volatile() }
}
