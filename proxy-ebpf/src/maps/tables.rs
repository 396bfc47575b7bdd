// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! The maps of an IP family, the family's part of the settings, and the check words of its entries.

use proxy_common::{
    BackendId, FlowEntry, FlowKey, Prefix, ServiceId, Settings, SocketEntry, SocketKey, V4, V6,
    masquerade::{MasqueradeSources, SourcesOf},
    ranges::{RANGES, Ranges},
    settings::any_contains,
};

use crate::{
    maps::{
        self, Affinity, Backends, Flows, Fragments, Frontends, NextHops, NodeAddresses, Pods,
        Records, Rings, SocketBuckets, Sockets, SourceRanges, TrafficOf, Workspaces,
    },
    packet::{Ip, Ipv4, Ipv6},
};

/// Access to the maps and settings of an IP family.
pub trait Tables: Ip {
    fn frontends() -> &'static Frontends<Self::Addr>;
    fn records() -> &'static Records<Self::Addr>;
    fn backends() -> &'static Backends<Self::Addr>;
    fn node_addresses() -> &'static NodeAddresses<Self::Addr>;
    fn source_ranges() -> &'static SourceRanges<Self::Addr>;
    fn affinity() -> &'static Affinity<Self::Addr>;
    fn flows() -> &'static Flows<Self::Addr>;
    fn sockets() -> &'static Sockets<Self::Addr>;
    fn socket_buckets() -> &'static SocketBuckets<Self::Addr>;
    fn rings() -> &'static Rings<Self::Addr>;
    fn fragments() -> &'static Fragments<Self::Addr>;
    fn pods() -> &'static Pods<Self::Addr>;
    fn workspaces() -> &'static Workspaces<Self::Addr>;
    fn traffic() -> &'static TrafficOf;
    fn next_hops() -> &'static NextHops<Self::Addr>;

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
    ($family:ident $addr:ident $inline:ident { $($function:ident: $map:ident $type:ident,)* }
     $pods:ident $services:ident $external:ident $allocated:ident $internal:ident $source:ident $workspace:ident $traffic:ident) => {
        impl Tables for $family {
            $(#[inline(always)]
            fn $function() -> &'static $type<$addr> {
                &maps::$map
            })*
            #[inline(always)]
            fn workspaces() -> &'static Workspaces<$addr> {
                &maps::$workspace
            }
            #[inline(always)]
            fn traffic() -> &'static TrafficOf {
                &maps::$traffic
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

tables!(Ipv4 V4 always {
    frontends: FRONTENDS_V4 Frontends,
    records: RECORDS_V4 Records,
    backends: BACKENDS_V4 Backends,
    node_addresses: NODE_ADDRESSES_V4 NodeAddresses,
    source_ranges: SOURCE_RANGES_V4 SourceRanges,
    affinity: AFFINITY_V4 Affinity,
    flows: FLOWS_V4 Flows,
    sockets: SOCKETS_V4 Sockets,
    socket_buckets: SOCKET_BUCKETS_V4 SocketBuckets,
    rings: RINGS_V4 Rings,
    fragments: FRAGMENTS_V4 Fragments,
    next_hops: NEXT_HOPS_V4 NextHops,
    pods: PODS_V4 Pods,
} pods_v4 services_v4 external_v4 allocated_v4 internal_v4 v4 WORKSPACE_V4 TRAFFIC_V4);

// VERIFIER: inlined, the check words of IPv6 read twenty words and fill the callers' stacks with
// spilled registers.
tables!(Ipv6 V6 never {
    frontends: FRONTENDS_V6 Frontends,
    records: RECORDS_V6 Records,
    backends: BACKENDS_V6 Backends,
    node_addresses: NODE_ADDRESSES_V6 NodeAddresses,
    source_ranges: SOURCE_RANGES_V6 SourceRanges,
    affinity: AFFINITY_V6 Affinity,
    flows: FLOWS_V6 Flows,
    sockets: SOCKETS_V6 Sockets,
    socket_buckets: SOCKET_BUCKETS_V6 SocketBuckets,
    rings: RINGS_V6 Rings,
    fragments: FRAGMENTS_V6 Fragments,
    next_hops: NEXT_HOPS_V6 NextHops,
    pods: PODS_V6 Pods,
} pods_v6 services_v6 external_v6 allocated_v6 internal_v6 v6 WORKSPACE_V6 TRAFFIC_V6);
