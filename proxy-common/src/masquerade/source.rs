// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The source address that a packet leaves an interface with: the address that netfilter's
//! MASQUERADE takes for this packet. The agent lists an interface's addresses, the programs at
//! egress select one of them.

use crate::{Addr, Prefix, V4, V6};

/// Maximum number of addresses of one family that the agent lists for an interface.
pub const SOURCES: usize = 8;

/// An address of an interface, and its subnet. On a point-to-point link, the subnet of an IPv4
/// address is the other end's.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(C)]
pub struct Source<A> {
    pub address: A,
    pub subnet: Prefix<A>,
}

/// An interface's addresses of one family in the kernel's order; after the last, [`Source::NONE`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(transparent)]
pub struct SourcesOf<A>(pub [Source<A>; SOURCES]);

/// The addresses that an interface masquerades with: value of the array `masq_addresses`. Its
/// elements are written once and never changed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(C)]
pub struct MasqueradeSources {
    pub v4: SourcesOf<V4>,
    pub v6: SourcesOf<V6>,
}

impl<A: Addr> Source<A> {
    pub const NONE: Self = Self {
        address: A::UNSPECIFIED,
        subnet: Prefix::NONE,
    };
}

impl MasqueradeSources {
    pub const NONE: Self = Self {
        v4: SourcesOf::NONE,
        v6: SourcesOf::NONE,
    };
}

impl<A: Addr> SourcesOf<A> {
    const NONE: Self = Self([Source::NONE; SOURCES]);

    /// Whether there are several addresses, so that the packet determines its source.
    #[inline(always)]
    pub fn has_several(&self) -> bool {
        let [_, second, ..] = &self.0;
        second.address != A::UNSPECIFIED
    }
}

impl SourcesOf<V4> {
    /// Returns the source address for a packet to this next hop; unspecified if the interface has
    /// no address. Like `inet_select_addr`, it selects the first address whose subnet holds the
    /// next hop, else the first.
    #[inline(always)]
    pub fn select(&self, next_hop: &V4) -> V4 {
        let mut n = 0;
        while n < SOURCES {
            let source = &self.0[n];
            if source.subnet.contains(*next_hop) {
                return source.address;
            }
            n += 1;
        }
        self.0[0].address
    }
}

impl SourcesOf<V6> {
    /// Returns the source address for a packet to this destination; unspecified if the interface
    /// has no address. Like `ipv6_dev_get_saddr` among preferred addresses of one scope and
    /// interface (RFC 6724, rules 6 and 8), it prefers addresses with the destination's label, then
    /// the one that shares the longest prefix with the destination, then the first.
    #[inline(always)]
    pub fn select(&self, destination: &V6) -> V6 {
        let wanted = label(destination);
        let (mut best, mut best_rank) = (V6::UNSPECIFIED, 0);
        let mut n = 0;
        while n < SOURCES {
            let Source { address, subnet } = &self.0[n];
            if *address == V6::UNSPECIFIED {
                break;
            }
            let same_label = (label(address) == wanted) as u32;
            let rank = 1 + same_label * 256 + shared_prefix(address, destination, &subnet.mask);
            if rank > best_rank {
                (best, best_rank) = (*address, rank);
            }
            n += 1;
        }
        best
    }
}

/// Returns how many leading bits two addresses share, at most as many as the mask has.
#[inline(always)]
fn shared_prefix(a: &V6, b: &V6, mask: &V6) -> u32 {
    let differ = |n: usize| u32::from_be(a.words()[n] ^ b.words()[n] | !mask.words()[n]);
    let join = |high, low| (high as u64) << 32 | low as u64;
    let (high, low) = (join(differ(0), differ(1)), join(differ(2), differ(3)));
    if high != 0 {
        high.leading_zeros()
    } else {
        64 + low.leading_zeros()
    }
}

/// Returns the label of an address by the kernel's own table (net/ipv6/addrlabel.c), as a number:
/// equal numbers are equal labels.
#[inline(always)]
fn label(address: &V6) -> u32 {
    let [a, b, c, _] = address.words().map(u32::from_be);
    if a >> 25 == 0xfc >> 1 {
        5
    } else if a >> 22 == 0xfec0 >> 6 {
        11
    } else if a >> 16 == 0x2002 {
        2
    } else if a >> 16 == 0x3ffe {
        12
    } else if a == 0x2001_0000 {
        6
    } else if a >> 4 == 0x2001_0010 >> 4 {
        7
    } else if a | b != 0 {
        1
    } else if c == 0xffff {
        4
    } else if c == 0 {
        3
    } else {
        1
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use rstest::rstest;

    use super::*;

    /// Parses addresses "ADDRESS/LENGTH" or, of a point-to-point link, "ADDRESS peer OTHER/LENGTH",
    /// as `ip address` prints them. `mask` makes a mask of a length.
    fn sources<A: Addr>(listed: &[&str], ip: fn(&str) -> A, mask: fn(u32) -> A) -> SourcesOf<A> {
        let mut sources = SourcesOf::NONE;
        for (place, text) in sources.0.iter_mut().zip(listed) {
            let (subnet, length) = text.split_once('/').expect("a length");
            let (own, other) = subnet.split_once(" peer ").unwrap_or((subnet, subnet));
            let mask = mask(length.parse().expect("a number"));
            let address = ip(other).masked(mask);
            *place = Source {
                address: ip(own),
                subnet: Prefix { address, mask },
            };
        }
        sources
    }

    fn ip4(text: &str) -> V4 {
        text.parse::<Ipv4Addr>().expect("IPv4").into()
    }
    fn ip6(text: &str) -> V6 {
        text.parse::<Ipv6Addr>().expect("IPv6").into()
    }
    fn v4(listed: &[&str]) -> SourcesOf<V4> {
        sources(listed, ip4, |length| {
            V4::from_word((!(u64::from(u32::MAX) >> length) as u32).to_be())
        })
    }
    fn v6(listed: &[&str]) -> SourcesOf<V6> {
        sources(listed, ip6, |length| V6 {
            octets: (!u128::MAX.checked_shr(length).unwrap_or(0)).to_be_bytes(),
        })
    }

    // What an nft rule `masquerade` gives: `proxy-user/tests/node/masquerade.rs` asks the kernel
    // the same.
    #[rstest]
    #[case::only(&["192.0.2.1/24"], "198.51.100.9", "192.0.2.1")]
    #[case::first_subnet(&["192.0.2.1/24", "198.51.100.1/24"], "192.0.2.9", "192.0.2.1")]
    #[case::second_subnet(&["192.0.2.1/24", "198.51.100.1/24"], "198.51.100.9", "198.51.100.1")]
    #[case::neither(&["192.0.2.1/24", "198.51.100.1/24"], "203.0.113.9", "192.0.2.1")]
    #[case::virtual_first(&["192.0.2.100/32", "192.0.2.1/24"], "192.0.2.9", "192.0.2.1")]
    #[case::virtual_alone_fits_nothing(&["192.0.2.100/32", "192.0.2.1/24"], "203.0.113.9", "192.0.2.100")]
    #[case::wide_first(&["10.0.0.1/8", "10.1.0.1/16"], "10.1.0.9", "10.0.0.1")]
    #[case::other_end(&["192.0.2.1/24", "10.0.0.1 peer 10.9.9.9/32"], "10.9.9.9", "10.0.0.1")]
    #[case::own_end(&["192.0.2.1/24", "10.0.0.1 peer 10.9.9.9/32"], "10.0.0.1", "192.0.2.1")]
    fn the_subnet_of_the_next_hop_selects_the_ipv4_source(
        #[case] listed: &[&str],
        #[case] next_hop: &str,
        #[case] expected: &str,
    ) {
        assert_eq!(v4(listed).select(&ip4(next_hop)), ip4(expected));
    }

    #[rstest]
    #[case::longest(&["2001:db8:1::1/64", "2001:db8:2::1/64"], "2001:db8:2::9", "2001:db8:2::1")]
    #[case::first_of_equals(&["2001:db8:1::1/64", "2001:db8:2::1/64"], "2001:db8:8::9", "2001:db8:1::1")]
    #[case::no_longer_than_its_prefix(&["2001:db8:1::1/64", "2001:db8:1::9:1/64"], "2001:db8:1::9:9", "2001:db8:1::1")]
    #[case::host_address(&["2001:db8:1::1/64", "2001:db8:1::9:1/128"], "2001:db8:1::9:9", "2001:db8:1::9:1")]
    #[case::global_to_global(&["fd00::1/64", "2001:db8::1/64"], "2400::9", "2001:db8::1")]
    #[case::local_to_local(&["2001:db8::1/64", "fd00::1/64"], "fdff::9", "fd00::1")]
    #[case::label_before_prefix(&["2002::1/64", "2001:db8::1/64"], "2003::9", "2001:db8::1")]
    #[case::near_128_bits(&["2001:db8::8/128", "2001:db8::a/128"], "2001:db8::b", "2001:db8::a")]
    fn label_and_prefix_of_the_destination_select_the_ipv6_source(
        #[case] listed: &[&str],
        #[case] destination: &str,
        #[case] expected: &str,
    ) {
        assert_eq!(v6(listed).select(&ip6(destination)), ip6(expected));
    }

    #[test]
    fn without_addresses_the_masquerade_source_is_unspecified() {
        let none = MasqueradeSources::NONE;
        assert_eq!(none.v4.select(&V4 { octets: [10; 4] }), V4::UNSPECIFIED);
        assert_eq!(none.v6.select(&V6 { octets: [32; 16] }), V6::UNSPECIFIED);
        assert!(!none.v4.has_several() && !v4(&["192.0.2.1/24"]).has_several());
        assert!(v4(&["192.0.2.1/24", "192.0.2.9/32"]).has_several());
    }

    #[test]
    fn ipv6_address_labels_equal_the_kernels() {
        let labels = "::1=3 fc00::1=5 fdff::1=5 fec0::1=11 2002::1=2 3ffe::1=12 2001::1=6 2001:1f::1=7 \
                      2001:20::1=1 ::ffff:1.2.3.4=4 ::1:0:0=1 2001:db8::1=1";
        for row in labels.split(' ') {
            let (address, expected) = row.split_once('=').expect("a label");
            assert_eq!(label(&ip6(address)).to_string(), expected, "{address}");
        }
    }
}
