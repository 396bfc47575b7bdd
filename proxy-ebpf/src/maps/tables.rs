// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! The maps of an IP family, the family's part of the settings, and the check words of its entries.
#![allow(
    non_upper_case_globals,
    reason = "a map's symbol is its name for the agent"
)]

use aya_ebpf::macros::btf_map;
use proxy_common::{
    BackendId, FlowEntry, FlowKey, Prefix, ServiceId, Settings, SocketEntry, SocketKey, V4, V6,
    masquerade::{MasqueradeSources, SourcesOf},
    ranges::{RANGES, Ranges},
    settings::any_contains,
};

use crate::{
    maps::{
        self, Affinity, Backends, FlowSlots, FlowTags, Fragments, Frontends, NextHops,
        NodeAddresses, Pods, Records, SocketBuckets, Sockets, SourceRanges, TrafficOf, Workspaces,
    },
    packet::{Ip, Ipv4, Ipv6},
};

/// Defines maps for each IP family, and the trait that finds a family's.
macro_rules! maps {
    ($($function:ident: $type:ident $v4:ident $v6:ident,)*) => {
        $(
            #[btf_map]
            static $v4: $type<V4> = $type::new();
            #[btf_map]
            static $v6: $type<V6> = $type::new();
        )*

        /// The maps of an IP family.
        pub trait Maps: Ip {
            $(fn $function() -> &'static $type<Self::Addr>;)*
        }
        impl Maps for Ipv4 {
            $(#[inline(always)]
            fn $function() -> &'static $type<V4> {
                &$v4
            })*
        }
        impl Maps for Ipv6 {
            $(#[inline(always)]
            fn $function() -> &'static $type<V6> {
                &$v6
            })*
        }
    };
}

maps! {
    frontends: Frontends frontends_v4 frontends_v6,
    records: Records records_v4 records_v6,
    backends: Backends backends_v4 backends_v6,
    node_addresses: NodeAddresses addresses_v4 addresses_v6,
    source_ranges: SourceRanges sources_v4 sources_v6,
    affinity: Affinity affinity_v4 affinity_v6,
    sockets: Sockets sockets_v4 sockets_v6,
    socket_buckets: SocketBuckets sock_buckets_v4 sock_buckets_v6,
    flow_slots: FlowSlots flow_slots_v4 flow_slots_v6,
    fragments: Fragments fragments_v4 fragments_v6,
    pods: Pods pods_v4 pods_v6,
    next_hops: NextHops next_hops_v4 next_hops_v6,
    workspaces: Workspaces scratch_v4 scratch_v6,
}

/// Access to the maps and settings of an IP family.
pub trait Tables: Maps {
    fn traffic() -> &'static TrafficOf;
    fn flow_tags() -> &'static FlowTags;

    /// Whether the address lies in a pod range.
    fn is_pod(settings: &Settings, address: Self::Addr) -> bool;
    /// The ranges that contain every cluster IP.
    fn services(settings: &Settings) -> &Ranges<Self::Addr>;
    /// The ranges that contain every external and load balancer IP.
    fn external(settings: &Settings) -> &Ranges<Self::Addr>;
    /// The ranges that cluster IPs are allocated from. No range is in use unless packets to
    /// unallocated cluster IPs are to be dropped.
    fn allocated(settings: &Settings) -> &[Prefix<Self::Addr>; RANGES];
    fn internal_address(settings: &Settings) -> Self::Addr;
    fn masquerade_sources(sources: &MasqueradeSources) -> &SourcesOf<Self::Addr>;
    /// Selects the source that netfilter's MASQUERADE takes for a packet `towards` a next hop
    /// (IPv4) or a destination (IPv6): see [`SourcesOf`].
    fn select_source(sources: &SourcesOf<Self::Addr>, towards: &Self::Addr) -> Self::Addr;

    /// Whether a backend still serves; `service` and `generation` are what a flow or socket
    /// remembers of the backend.
    #[inline(always)]
    fn serves(backend: BackendId, service: ServiceId, generation: u32) -> bool {
        Self::backends()
            .get(backend.0)
            .is_some_and(|backend| backend.is_current(service, generation))
    }

    /// Returns the check word that a flow entry must have under a key.
    fn flow_check(key: &FlowKey<Self::Addr>, entry: &FlowEntry<Self::Addr>) -> u32;
    /// Returns the check word that a socket's entry must have under a key.
    fn socket_check(key: &SocketKey<Self::Addr>, entry: &SocketEntry<Self::Addr>) -> u32;
}

macro_rules! tables {
    ($family:ident $addr:ident $inline:ident $pods:ident $services:ident $external:ident
     $allocated:ident $internal:ident $source:ident $traffic:ident $tags:ident) => {
        impl Tables for $family {
            #[inline(always)]
            fn traffic() -> &'static TrafficOf {
                &maps::$traffic
            }
            #[inline(always)]
            fn flow_tags() -> &'static FlowTags {
                &maps::$tags
            }
            #[inline(always)]
            fn is_pod(settings: &Settings, address: $addr) -> bool {
                any_contains(&settings.$pods, address)
            }
            #[inline(always)]
            fn services(settings: &Settings) -> &Ranges<$addr> {
                &settings.$services
            }
            #[inline(always)]
            fn external(settings: &Settings) -> &Ranges<$addr> {
                &settings.$external
            }
            #[inline(always)]
            fn allocated(settings: &Settings) -> &[Prefix<$addr>; RANGES] {
                &settings.$allocated
            }
            #[inline(always)]
            fn internal_address(settings: &Settings) -> $addr {
                settings.$internal
            }
            #[inline(always)]
            fn masquerade_sources(sources: &MasqueradeSources) -> &SourcesOf<$addr> {
                &sources.$source
            }
            #[inline(always)]
            fn select_source(sources: &SourcesOf<$addr>, towards: &$addr) -> $addr {
                sources.select(towards)
            }
            #[inline($inline)]
            fn flow_check(key: &FlowKey<$addr>, entry: &FlowEntry<$addr>) -> u32 {
                entry.check_for(key)
            }
            #[inline($inline)]
            fn socket_check(key: &SocketKey<$addr>, entry: &SocketEntry<$addr>) -> u32 {
                entry.check_for(key)
            }
        }
    };
}

tables!(Ipv4 V4 always pods_v4 services_v4 external_v4 allocated_v4 internal_v4 v4 TRAFFIC_V4 FLOW_TAGS_V4);
// VERIFIER: inlined, the check words of IPv6 read twenty words and fill the callers' stacks with
// spilled registers.
tables!(Ipv6 V6 never pods_v6 services_v6 external_v6 allocated_v6 internal_v6 v6 TRAFFIC_V6 FLOW_TAGS_V6);
