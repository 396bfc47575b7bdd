// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The address families: everything in the datapath that differs between them. Used by all other
//! modules.

use std::net::IpAddr;

use control::plan::{FamilyPlan, PortPlan, ServicePlan};
use ipnet::IpNet;
use linux::{LpmKey, Plain};
use proxy_common::{
    Addr, Prefix, ServiceId, Settings, V4, V6, maps, ranges::Ranges, service::SourceRangeKey,
};

/// An address family, IPv4 or IPv6: the names of its maps, and its parts of plans and settings.
pub trait Family: Addr + Plain + Into<IpAddr> {
    /// The IP version: 4 or 6.
    const VERSION: u32;
    const FRONTENDS: &'static str;
    const RECORDS: &'static str;
    const BACKENDS: &'static str;
    const SOURCE_RANGES: &'static str;
    const NODE_ADDRESSES: &'static str;
    const PODS: &'static str;
    const FLOWS: &'static str;
    const AFFINITY: &'static str;
    const SOCKETS: &'static str;
    const SOCKET_BUCKETS: &'static str;
    const TRAFFIC: &'static str;
    const FRAGMENTS: &'static str;
    const RINGS: &'static str;
    const EXPIRE: &'static str;

    /// Returns this family's part of a service port's plan.
    fn of_port(port: &PortPlan) -> &FamilyPlan<Self>;
    /// Returns those cluster IPs of this family whose unserved ports are rejected.
    fn guarded(plan: &ServicePlan) -> &[Self];
    /// Returns the address as one of this family; `None` if it is of the other family.
    fn of_ip(address: IpAddr) -> Option<Self>;
    /// Returns the range as one of this family; `None` if it is of the other family.
    fn prefix(range: IpNet) -> Option<Prefix<Self>> {
        Some(Prefix {
            address: Self::of_ip(range.network())?,
            mask: Self::mask(range.prefix_len().into()),
        })
    }
    /// Returns the key of a service's source range in the map of source ranges; `None` if the range
    /// is of the other family.
    fn source_range(service: ServiceId, range: &IpNet) -> Option<LpmKey<Self>> {
        let address = Self::of_ip(range.network())?;
        Some(LpmKey {
            prefix: 32 + u32::from(range.prefix_len()),
            data: SourceRangeKey { service, address },
        })
    }
    /// Returns the source range that a key of the map of source ranges contains; `None` if it is
    /// invalid.
    fn range_of(key: &LpmKey<Self>) -> Option<IpNet> {
        let length = u8::try_from(key.prefix.checked_sub(32)?).ok()?;
        IpNet::new(key.data.address.into(), length).ok()
    }
    /// Returns the node's InternalIP in the settings; the unspecified address if it is not known.
    fn internal(settings: &Settings) -> Self;
    /// Returns the ranges of cluster IPs in the settings.
    fn services(settings: &mut Settings) -> &mut Ranges<Self>;
    /// Returns the ranges of external and load balancer IPs in the settings.
    fn external(settings: &mut Settings) -> &mut Ranges<Self>;
    /// Returns a mask with this number of leading ones.
    fn mask(bits: u32) -> Self;
    /// Returns the number of leading bits that two addresses share.
    fn common_bits(self, other: Self) -> u32;
}

macro_rules! family {
    ($family:ident, $word:ident, $variant:ident, $lower:ident, $guarded:ident, $services:ident, $external:ident, $internal:ident,
     $frontends:ident, $records:ident, $backends:ident, $sources:ident, $addresses:ident, $pods:ident, $flows:ident,
     $affinity:ident, $sockets:ident, $buckets:ident, $traffic:ident, $fragments:ident, $rings:ident, $expire:literal) => {
        impl Family for $family {
            const VERSION: u32 = if Self::BITS == 32 { 4 } else { 6 };
            const FRONTENDS: &'static str = maps::$frontends;
            const RECORDS: &'static str = maps::$records;
            const BACKENDS: &'static str = maps::$backends;
            const SOURCE_RANGES: &'static str = maps::$sources;
            const NODE_ADDRESSES: &'static str = maps::$addresses;
            const PODS: &'static str = maps::$pods;
            const FLOWS: &'static str = maps::$flows;
            const AFFINITY: &'static str = maps::$affinity;
            const SOCKETS: &'static str = maps::$sockets;
            const SOCKET_BUCKETS: &'static str = maps::$buckets;
            const TRAFFIC: &'static str = maps::$traffic;
            const FRAGMENTS: &'static str = maps::$fragments;
            const RINGS: &'static str = maps::$rings;
            const EXPIRE: &'static str = $expire;

            fn of_port(port: &PortPlan) -> &FamilyPlan<Self> {
                &port.$lower
            }
            fn guarded(plan: &ServicePlan) -> &[Self] {
                &plan.$guarded
            }
            fn of_ip(address: IpAddr) -> Option<Self> {
                match address {
                    IpAddr::$variant(address) => Some(address.into()),
                    _ => None,
                }
            }
            fn internal(settings: &Settings) -> Self {
                settings.$internal
            }
            fn services(settings: &mut Settings) -> &mut Ranges<Self> {
                &mut settings.$services
            }
            fn external(settings: &mut Settings) -> &mut Ranges<Self> {
                &mut settings.$external
            }
            fn mask(bits: u32) -> Self {
                let ones = $word::MAX.checked_shl(Self::BITS - bits).unwrap_or(0);
                Self {
                    octets: ones.to_be_bytes(),
                }
            }
            fn common_bits(self, other: Self) -> u32 {
                ($word::from_be_bytes(self.octets) ^ $word::from_be_bytes(other.octets))
                    .leading_zeros()
            }
        }
    };
}

family!(
    V4,
    u32,
    V4,
    v4,
    guarded_v4,
    services_v4,
    external_v4,
    internal_v4,
    FRONTENDS_V4,
    RECORDS_V4,
    BACKENDS_V4,
    SOURCE_RANGES_V4,
    NODE_ADDRESSES_V4,
    PODS_V4,
    FLOWS_V4,
    AFFINITY_V4,
    SOCKETS_V4,
    SOCKET_BUCKETS_V4,
    TRAFFIC_V4,
    FRAGMENTS_V4,
    RINGS_V4,
    "expire_v4"
);
family!(
    V6,
    u128,
    V6,
    v6,
    guarded_v6,
    services_v6,
    external_v6,
    internal_v6,
    FRONTENDS_V6,
    RECORDS_V6,
    BACKENDS_V6,
    SOURCE_RANGES_V6,
    NODE_ADDRESSES_V6,
    PODS_V6,
    FLOWS_V6,
    AFFINITY_V6,
    SOCKETS_V6,
    SOCKET_BUCKETS_V6,
    TRAFFIC_V6,
    FRAGMENTS_V6,
    RINGS_V6,
    "expire_v6"
);

/// Returns the smallest address range that contains both ranges; [`Prefix::NONE`] is the empty
/// range.
pub fn join<A: Family>(range: Prefix<A>, other: Prefix<A>) -> Prefix<A> {
    let is_unused =
        |range: &Prefix<A>| range.address == A::UNSPECIFIED && range.mask == A::mask(A::BITS);
    if is_unused(&range) {
        return other;
    }
    if is_unused(&other) {
        return range;
    }
    let common = A::mask(range.address.common_bits(other.address));
    let mask = range.mask.masked(other.mask).masked(common);
    Prefix {
        address: range.address.masked(mask),
        mask,
    }
}
