// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Widens the address ranges in the settings until they contain all service addresses. Pure
//! functions, called by `node`.

use proxy_common::{
    Addr, Prefix,
    ranges::{RANGES, Ranges},
};

use super::family::Family;

/// How many leading bits two ranges must share to be joined even if the list has space for both;
/// first for IPv4, then for IPv6.
#[derive(Clone, Copy)]
pub struct Near(u32, u32);

impl Near {
    /// KUBE: for cluster IPs. The prefix of the range that they come from has at least this many
    /// bits, so all of them end up in one range here.
    pub const CLUSTER_IPS: Self = Self(12, 64);
    /// For external and load balancer IPs, which come in small pools, close to addresses of nodes
    /// and pods.
    pub const EXTERNAL_IPS: Self = Self(24, 64);

    const fn bits<A: Addr>(self) -> u32 {
        if A::BITS == 32 { self.0 } else { self.1 }
    }
}

/// Returns the ranges, widened to contain `range` as well; [`Prefix::NONE`] adds nothing. If there
/// are too many, the two that share the most leading bits become one. No address is ever lost.
pub fn include<A: Family>(ranges: &Ranges<A>, range: Prefix<A>, near: Near) -> Ranges<A> {
    if is_unused(&range) || ranges.used().iter().any(|held| join(*held, range) == *held) {
        return *ranges;
    }
    let mut list = ranges.used().to_vec();
    list.push(range);
    while let Some((first, second, shared)) = closest(&list)
        && (list.len() > RANGES || shared >= near.bits::<A>())
    {
        list[first] = join(list[first], list[second]);
        list.remove(second);
    }
    ranges.with(&list)
}

/// Like [`include()`], for a list of single addresses.
pub fn include_all<A: Family>(ranges: &Ranges<A>, addresses: &[A], near: Near) -> Ranges<A> {
    addresses.iter().fold(*ranges, |ranges, address| {
        if ranges.contains(*address) {
            return ranges;
        }
        let range = Prefix {
            address: *address,
            mask: A::ONES,
        };
        include(&ranges, range, near)
    })
}

fn is_unused<A: Addr>(range: &Prefix<A>) -> bool {
    range.address == A::UNSPECIFIED && range.mask == A::ONES
}

/// Returns the smallest address range that contains both ranges; [`Prefix::NONE`] is the empty
/// range.
fn join<A: Family>(range: Prefix<A>, other: Prefix<A>) -> Prefix<A> {
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

/// Returns the positions of the two ranges that share the most leading bits, the smaller position
/// first, and the number of these bits (all bits if one range contains the other).
fn closest<A: Family>(list: &[Prefix<A>]) -> Option<(usize, usize, u32)> {
    let pairs = (0..list.len()).flat_map(|first| (first + 1..list.len()).map(move |b| (first, b)));
    let with_shared = pairs.map(|(first, second)| {
        let joined = join(list[first], list[second]);
        let shared = if joined == list[first] || joined == list[second] {
            A::BITS
        } else {
            joined.mask.common_bits(A::ONES)
        };
        (first, second, shared)
    });
    // Among equals the first wins, so that the result does not depend on the search order.
    with_shared.reduce(|best, pair| if pair.2 > best.2 { pair } else { best })
}

#[cfg(test)]
mod tests {
    use control::testing::rows;
    use proptest::prelude::*;
    use proxy_common::{V4, V6};

    use super::*;

    const NEAR: Near = Near::CLUSTER_IPS;

    fn v4(text: &str) -> V4 {
        text.parse::<std::net::Ipv4Addr>()
            .expect("an address")
            .into()
    }
    fn prefix(text: &str) -> Prefix<V4> {
        let net: ipnet::Ipv4Net = text.parse().expect("a range");
        Prefix {
            address: net.network().into(),
            mask: net.netmask().into(),
        }
    }
    fn all(texts: &str) -> Vec<Prefix<V4>> {
        texts.split(' ').map(prefix).collect()
    }
    fn after(addresses: &str, near: Near) -> Ranges<V4> {
        let addresses: Vec<_> = addresses.split(' ').map(v4).collect();
        include_all(&Ranges::<V4>::NONE, &addresses, near)
    }

    /// Addresses, and the ranges that contain them: of cluster IPs, and (in the last row) of
    /// external IPs, of which there are too many ranges.
    const JOINED: &str = "
10.96.0.1 | 10.96.0.1/32
10.96.0.1 10.96.0.10 10.103.4.5 | 10.96.0.0/13
10.96.0.1 192.168.3.4 172.30.0.1 10.96.7.7 | 10.96.0.0/21 192.168.3.4/32 172.30.0.1/32
198.51.100.7 10.0.0.1 192.0.2.1 203.0.113.4 10.9.0.1
  | 198.51.100.7/32 10.0.0.0/12 192.0.2.1/32 203.0.113.4/32
";

    #[test]
    fn near_addresses_and_those_of_too_many_ranges_are_joined() {
        for [addresses, ranges] in rows(JOINED) {
            let near = match addresses.starts_with("198") {
                true => Near::EXTERNAL_IPS,
                false => NEAR,
            };
            let found = after(&addresses, near);
            assert_eq!(found.used(), all(&ranges), "{addresses}");
            assert!(!found.contains(v4("203.0.113.9")));
        }
    }

    #[test]
    fn a_range_replaces_the_ranges_that_it_contains() {
        let ranges = after("10.96.0.1 172.30.0.1", NEAR);
        let ranges = include(&ranges, prefix("10.0.0.0/8"), NEAR);
        assert_eq!(ranges.used(), all("10.0.0.0/8 172.30.0.1/32"));
        assert_eq!(include(&ranges, prefix("10.1.0.0/16"), NEAR), ranges);
        assert_eq!(include(&ranges, Prefix::<V4>::NONE, NEAR), ranges);
    }

    proptest! {
        #[test]
        fn ranges_contain_every_address_that_was_ever_included(addresses: Vec<[u8; 16]>) {
            let mut ranges = Ranges::<V6>::NONE;
            for (i, octets) in addresses.iter().enumerate() {
                ranges = include_all(&ranges, &[V6 { octets: *octets }], Near::EXTERNAL_IPS);
                prop_assert!(!ranges.used().is_empty());
                for held in &addresses[..=i] {
                    let held = V6 { octets: *held };
                    prop_assert!(ranges.contains(held));
                }
            }
        }

        #[test]
        fn ranges_never_overlap_and_only_a_single_one_may_cover_all_addresses(addresses: Vec<[u8; 4]>) {
            let addresses: Vec<_> = addresses.iter().map(|octets| V4 { octets: *octets }).collect();
            let ranges = include_all(&Ranges::<V4>::NONE, &addresses, NEAR);
            let used = ranges.used();
            for (at, range) in used.iter().enumerate() {
                prop_assert_eq!(range.address.masked(range.mask), range.address);
                for other in &used[at + 1..] {
                    prop_assert!(!range.contains(other.address) && !other.contains(range.address));
                }
            }
            if used.len() > 1 {
                prop_assert!(used.iter().all(|range| range.mask != V4::UNSPECIFIED));
            }
        }
    }
}
