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
pub trait Family: Addr + Plain + Into<IpAddr> + Default {
    const VERSION: u32 = if Self::BITS == 32 { 4 } else { 6 };
    /// The family's place where both families' values are in one array.
    const AT: usize = if Self::BITS == 32 { 0 } else { 1 };
    const FRONTENDS: &'static str = of::<Self>(maps::FRONTENDS_V4, maps::FRONTENDS_V6);
    const RECORDS: &'static str = of::<Self>(maps::RECORDS_V4, maps::RECORDS_V6);
    const BACKENDS: &'static str = of::<Self>(maps::BACKENDS_V4, maps::BACKENDS_V6);
    const SOURCE_RANGES: &'static str = of::<Self>(maps::SOURCE_RANGES_V4, maps::SOURCE_RANGES_V6);
    const NODE_ADDRESSES: &'static str =
        of::<Self>(maps::NODE_ADDRESSES_V4, maps::NODE_ADDRESSES_V6);
    const PODS: &'static str = of::<Self>(maps::PODS_V4, maps::PODS_V6);
    const FLOW_SLOTS: &'static str = of::<Self>(maps::FLOW_SLOTS_V4, maps::FLOW_SLOTS_V6);
    const FLOW_TAGS: &'static str = of::<Self>(maps::FLOW_TAGS_V4, maps::FLOW_TAGS_V6);
    const AFFINITY: &'static str = of::<Self>(maps::AFFINITY_V4, maps::AFFINITY_V6);
    const SOCKETS: &'static str = of::<Self>(maps::SOCKETS_V4, maps::SOCKETS_V6);
    const SOCKET_BUCKETS: &'static str =
        of::<Self>(maps::SOCKET_BUCKETS_V4, maps::SOCKET_BUCKETS_V6);
    const TRAFFIC: &'static str = of::<Self>(maps::TRAFFIC_V4, maps::TRAFFIC_V6);
    const FRAGMENTS: &'static str = of::<Self>(maps::FRAGMENTS_V4, maps::FRAGMENTS_V6);
    const EXPIRE: &'static str = of::<Self>("expire_v4", "expire_v6");

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
    fn mask(bits: u32) -> Self;
    fn common_bits(self, other: Self) -> u32;
}

const fn of<A: Addr>(v4: &'static str, v6: &'static str) -> &'static str {
    if A::BITS == 32 { v4 } else { v6 }
}

macro_rules! family {
    ($family:ident, $word:ident, $lower:ident, $guarded:ident, $services:ident, $external:ident, $internal:ident) => {
        impl Family for $family {
            fn of_port(port: &PortPlan) -> &FamilyPlan<Self> {
                &port.$lower
            }
            fn guarded(plan: &ServicePlan) -> &[Self] {
                &plan.$guarded
            }
            fn of_ip(address: IpAddr) -> Option<Self> {
                match address {
                    IpAddr::$family(address) => Some(address.into()),
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
    v4,
    guarded_v4,
    services_v4,
    external_v4,
    internal_v4
);
family!(
    V6,
    u128,
    v6,
    guarded_v6,
    services_v6,
    external_v6,
    internal_v6
);
