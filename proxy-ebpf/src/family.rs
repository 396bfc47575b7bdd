// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! All that differs between IPv4 and IPv6: header layout and maps. Everything else is generic over it.

use aya_ebpf::btf_maps::PerCpuArray;
use proxy_common::{
    Addr, FlowEntry, FlowKey, Prefix, Protocol, Settings, V4, V6, checksum,
    masquerade::MasqueradeSource, settings,
};

use crate::{
    maps::{
        self, Affinity, Backends, Flows, Fragments, Frontends, NodeAddresses, Records,
        SourceRanges, Workspace,
    },
    packet::{
        Skb,
        access::WriteFailed,
        headers::{ICMP_LEN, IPV4_LEN, IPV6_LEN, Ipv4Header, Ipv6Header},
        parse::{self, Network, Packet},
    },
    rewrite::{self, To},
};

/// An IP family.
pub trait Family: 'static {
    type Addr: Addr;
    const ICMP: Protocol;

    /// Reads the IP header at `l3` and what lies between it and the transport header.
    fn network(skb: Skb, l3: u32) -> Option<Network<Self::Addr>>;
    /// [`parse::parse`] and [`rewrite`]'s two, inlined for IPv4.
    // VERIFIER: for IPv6 they are subprograms, lest their copies of addresses fill the callers' stacks.
    fn parse(skb: Skb, packet: &mut Packet<Self::Addr>) -> bool;
    fn rewrite_destination(skb: Skb, packet: &Packet<Self::Addr>, to: &To<Self::Addr>) -> bool;
    fn rewrite_source(skb: Skb, packet: &Packet<Self::Addr>, to: &To<Self::Addr>) -> bool;

    /// Writes both addresses, and the header's checksum where there is one.
    fn store_addresses(
        skb: Skb,
        packet: &Packet<Self::Addr>,
        src: Self::Addr,
        dst: Self::Addr,
    ) -> Result<(), WriteFailed>;
    /// Writes a quoted packet's addresses, those of `tuple` reversed; the quoting ICMP error's checksum is
    /// the caller's.
    fn store_quoted_addresses(
        skb: Skb,
        l3: u32,
        ip_checksum: u16,
        old: &FlowKey<Self::Addr>,
        tuple: &FlowKey<Self::Addr>,
    ) -> Result<(), WriteFailed>;
    /// Makes the IP header that of an answer with `len` bytes of transport.
    fn turn_around(skb: Skb, packet: &Packet<Self::Addr>, len: u32) -> Result<(), WriteFailed>;
    /// The sum over a pseudo header, unfolded.
    fn pseudo_sum(a: Self::Addr, b: Self::Addr, len: u32, protocol: Protocol) -> u64;
    /// Length of an IP header without options.
    const HEADER_LEN: u32;
    /// Writes IP and ICMP headers of a port unreachable in front of the `quoted` bytes that sum to `sum`.
    fn store_unreachable(
        skb: Skb,
        packet: &Packet<Self::Addr>,
        quoted: u32,
        sum: u32,
    ) -> Result<(), WriteFailed>;
    /// Where the packet ends by its IP header; padding may follow.
    fn packet_end(skb: Skb, l3: u32) -> Option<u32>;
    /// The ones' complement sum of what an address change adds, unfolded to 32 bits.
    fn difference(old: Self::Addr, new: Self::Addr) -> u32;

    /// The check word of a flow entry under a key.
    fn check_word(key: &FlowKey<Self::Addr>, entry: &FlowEntry<Self::Addr>) -> u32;

    fn is_pod(settings: &Settings, address: Self::Addr) -> bool;
    fn services(settings: &Settings) -> &Prefix<Self::Addr>;
    fn internal_address(settings: &Settings) -> Self::Addr;
    fn masquerade_address(source: &MasqueradeSource) -> Self::Addr;

    fn frontends() -> &'static Frontends<Self::Addr>;
    fn records() -> &'static Records<Self::Addr>;
    fn backends() -> &'static Backends<Self::Addr>;
    fn node_addresses() -> &'static NodeAddresses<Self::Addr>;
    fn source_ranges() -> &'static SourceRanges<Self::Addr>;
    fn affinity() -> &'static Affinity<Self::Addr>;
    fn flows() -> &'static Flows<Self::Addr>;
    fn fragments() -> &'static Fragments<Self::Addr>;
    fn workspace() -> &'static PerCpuArray<Workspace<Self::Addr>, 1>;
}

macro_rules! maps_of_family {
    ($($function:ident: $map:ident $type:ident),*) => {
        $(#[inline(always)]
        fn $function() -> &'static $type<Self::Addr> {
            &maps::$map
        })*
    };
}

/// Time to live of what the programs send themselves.
const ANSWER_TTL: u8 = 64;

/// Writes an IPv4 header's addresses and the checksum that follows them; their changes cancel out in the
/// device's sum.
#[inline(always)]
fn store_v4(
    skb: Skb,
    l3: u32,
    ip_checksum: u16,
    old: (V4, V4),
    new: (V4, V4),
) -> Result<(), WriteFailed> {
    #[repr(C)]
    #[derive(Clone, Copy)]
    struct Tail {
        checksum: u16,
        // In halves: the struct begins at the header's tenth byte, without padding.
        src: [u16; 2],
        dst: [u16; 2],
    }
    let halves = |address: V4| {
        let [a, b, c, d] = address.octets;
        [u16::from_ne_bytes([a, b]), u16::from_ne_bytes([c, d])]
    };
    let sum = !ip_checksum as u64
        + !old.0.word() as u64
        + new.0.word() as u64
        + !old.1.word() as u64
        + new.1.word() as u64;
    let tail = Tail {
        checksum: !checksum::fold(sum),
        src: halves(new.0),
        dst: halves(new.1),
    };
    skb.store(l3 + 10, &tail, false)
}

/// Sum of a 64-bit intermediate folded to 32 bits, carries added back.
#[inline(always)]
pub fn fold_32(sum: u64) -> u32 {
    let sum = (sum >> 32) + (sum & 0xffff_ffff);
    ((sum >> 32) + (sum & 0xffff_ffff)) as u32
}

pub enum Ipv4 {}

impl Family for Ipv4 {
    type Addr = V4;
    const ICMP: Protocol = Protocol::ICMP;

    #[inline(always)]
    fn network(skb: Skb, l3: u32) -> Option<Network<V4>> {
        let header: Ipv4Header = skb.read(l3)?;
        let len = header.len();
        if len < IPV4_LEN {
            return None;
        }
        let fragmented = header.fragment & (Ipv4Header::MORE_FRAGMENTS | Ipv4Header::OFFSET) != 0;
        let later_fragment = header.fragment & Ipv4Header::OFFSET != 0;
        Some(Network {
            src: header.src,
            dst: header.dst,
            protocol: header.protocol,
            l4: l3 + len,
            ip_checksum: header.checksum,
            fragment_id: header.id as u32,
            first_fragment: fragmented && !later_fragment,
            later_fragment,
        })
    }

    #[inline(always)]
    fn parse(skb: Skb, packet: &mut Packet<V4>) -> bool {
        parse::parse::<Self>(skb, packet).is_some()
    }

    #[inline(always)]
    fn rewrite_destination(skb: Skb, packet: &Packet<V4>, to: &To<V4>) -> bool {
        rewrite::destination::<Self>(skb, packet, to).is_ok()
    }

    #[inline(always)]
    fn rewrite_source(skb: Skb, packet: &Packet<V4>, to: &To<V4>) -> bool {
        rewrite::source::<Self>(skb, packet, to).is_ok()
    }

    #[inline(always)]
    fn store_addresses(skb: Skb, packet: &Packet<V4>, src: V4, dst: V4) -> Result<(), WriteFailed> {
        store_v4(
            skb,
            packet.l3,
            packet.ip_checksum,
            (packet.key.src, packet.key.dst),
            (src, dst),
        )
    }

    #[inline(always)]
    fn store_quoted_addresses(
        skb: Skb,
        l3: u32,
        ip_checksum: u16,
        old: &FlowKey<V4>,
        tuple: &FlowKey<V4>,
    ) -> Result<(), WriteFailed> {
        store_v4(
            skb,
            l3,
            ip_checksum,
            (old.src, old.dst),
            (tuple.dst, tuple.src),
        )
    }

    #[inline(always)]
    fn turn_around(skb: Skb, packet: &Packet<V4>, len: u32) -> Result<(), WriteFailed> {
        let mut header: Ipv4Header = skb.load(packet.l3).ok_or(WriteFailed)?;
        let old = [header.total_length, header.fragment, header.ttl_protocol()];
        header.total_length = ((packet.l4 - packet.l3 + len) as u16).to_be();
        header.fragment = Ipv4Header::DONT_FRAGMENT;
        header.ttl = ANSWER_TTL;
        (header.src, header.dst) = (header.dst, header.src);
        let new = [header.total_length, header.fragment, header.ttl_protocol()];
        for n in 0..3 {
            header.checksum = checksum::replace_half(header.checksum, old[n], new[n]);
        }
        skb.store(packet.l3, &header, true)
    }

    #[inline(always)]
    fn pseudo_sum(a: V4, b: V4, len: u32, protocol: Protocol) -> u64 {
        a.word() as u64 + b.word() as u64 + (((protocol.0 as u32) << 16 | len).to_be()) as u64
    }

    const HEADER_LEN: u32 = IPV4_LEN;

    #[inline(always)]
    fn store_unreachable(
        skb: Skb,
        packet: &Packet<V4>,
        quoted: u32,
        sum: u32,
    ) -> Result<(), WriteFailed> {
        #[derive(Clone, Copy)]
        #[repr(C)]
        struct Headers {
            ip: Ipv4Header,
            icmp: [u16; 4],
        }
        const TYPE_CODE: u16 = u16::from_ne_bytes([3, 3]);
        let mut headers = Headers {
            ip: Ipv4Header {
                version_ihl: 0x45,
                // Internetwork control, as the kernel's own errors.
                tos: 0xc0,
                total_length: ((IPV4_LEN + ICMP_LEN + quoted) as u16).to_be(),
                id: 0,
                fragment: Ipv4Header::DONT_FRAGMENT,
                ttl: ANSWER_TTL,
                protocol: Protocol::ICMP,
                checksum: 0,
                src: packet.key.dst,
                dst: packet.key.src,
            },
            icmp: [
                TYPE_CODE,
                !checksum::fold(sum as u64 + TYPE_CODE as u64),
                0,
                0,
            ],
        };
        let ip = &headers.ip;
        let ip_sum = u16::from_ne_bytes([0x45, 0xc0]) as u64
            + ip.total_length as u64
            + ip.fragment as u64
            + ip.ttl_protocol() as u64
            + ip.src.word() as u64
            + ip.dst.word() as u64;
        headers.ip.checksum = !checksum::fold(ip_sum);
        skb.store(packet.l3, &headers, true)
    }

    #[inline(always)]
    fn packet_end(skb: Skb, l3: u32) -> Option<u32> {
        let header: Ipv4Header = skb.read(l3)?;
        Some(l3 + u16::from_be(header.total_length) as u32)
    }

    #[inline(always)]
    fn difference(old: V4, new: V4) -> u32 {
        fold_32(!old.word() as u64 + new.word() as u64)
    }

    #[inline(always)]
    fn check_word(key: &FlowKey<V4>, entry: &FlowEntry<V4>) -> u32 {
        entry.check_for(key)
    }

    #[inline(always)]
    fn is_pod(settings: &Settings, address: V4) -> bool {
        settings::any_contains(&settings.pods_v4, address)
    }
    #[inline(always)]
    fn services(settings: &Settings) -> &Prefix<V4> {
        &settings.services_v4
    }
    #[inline(always)]
    fn internal_address(settings: &Settings) -> V4 {
        settings.internal_v4
    }
    #[inline(always)]
    fn masquerade_address(source: &MasqueradeSource) -> V4 {
        source.v4
    }

    maps_of_family!(
        frontends: FRONTENDS_V4 Frontends, records: RECORDS_V4 Records, backends: BACKENDS_V4 Backends,
        node_addresses: NODE_ADDRESSES_V4 NodeAddresses, source_ranges: SOURCE_RANGES_V4 SourceRanges,
        affinity: AFFINITY_V4 Affinity, flows: FLOWS_V4 Flows, fragments: FRAGMENTS_V4 Fragments
    );

    #[inline(always)]
    fn workspace() -> &'static PerCpuArray<Workspace<V4>, 1> {
        &maps::WORKSPACE_V4
    }
}

pub enum Ipv6 {}

impl Family for Ipv6 {
    type Addr = V6;
    const ICMP: Protocol = Protocol::ICMPV6;

    #[inline(always)]
    fn network(skb: Skb, l3: u32) -> Option<Network<V6>> {
        let header: Ipv6Header = skb.read(l3)?;
        if header.version_class_flow & 0xf0_u32.to_le() != 0x60_u32.to_le() {
            return None;
        }
        let mut network = Network {
            src: header.src,
            dst: header.dst,
            protocol: header.next_header,
            l4: l3 + IPV6_LEN,
            ip_checksum: 0,
            fragment_id: 0,
            first_fragment: false,
            later_fragment: false,
        };
        if is_extension(header.next_header) {
            let walked = walk_extensions(skb, network.l4, header.next_header)?;
            network.protocol = walked.protocol;
            network.l4 = walked.l4;
            network.fragment_id = walked.fragment_id;
            network.first_fragment = walked.fragmented && !walked.later_fragment;
            network.later_fragment = walked.later_fragment;
        }
        Some(network)
    }

    #[inline(never)]
    fn parse(skb: Skb, packet: &mut Packet<V6>) -> bool {
        parse::parse::<Self>(skb, packet).is_some()
    }

    #[inline(never)]
    fn rewrite_destination(skb: Skb, packet: &Packet<V6>, to: &To<V6>) -> bool {
        rewrite::destination::<Self>(skb, packet, to).is_ok()
    }

    #[inline(never)]
    fn rewrite_source(skb: Skb, packet: &Packet<V6>, to: &To<V6>) -> bool {
        rewrite::source::<Self>(skb, packet, to).is_ok()
    }

    #[inline(always)]
    fn store_addresses(skb: Skb, packet: &Packet<V6>, src: V6, dst: V6) -> Result<(), WriteFailed> {
        // The transport checksum's helper takes the address change out of the device's sum, as if a header
        // checksum made up for it; IPv6 has none, so it is put back here. (BPF_F_IPV6, Linux 6.16, says the
        // same to the helper; this is right on every kernel.)
        skb.store(packet.l3 + 8, &[src, dst], true)
    }

    #[inline(always)]
    fn store_quoted_addresses(
        skb: Skb,
        l3: u32,
        _: u16,
        _: &FlowKey<V6>,
        tuple: &FlowKey<V6>,
    ) -> Result<(), WriteFailed> {
        skb.store(l3 + 8, &[tuple.dst, tuple.src], false)
    }

    #[inline(always)]
    fn turn_around(skb: Skb, packet: &Packet<V6>, len: u32) -> Result<(), WriteFailed> {
        let mut header: Ipv6Header = skb.load(packet.l3).ok_or(WriteFailed)?;
        header.payload_length = ((packet.l4 - packet.l3 - IPV6_LEN + len) as u16).to_be();
        header.hop_limit = ANSWER_TTL;
        (header.src, header.dst) = (header.dst, header.src);
        skb.store(packet.l3, &header, true)
    }

    #[inline(always)]
    fn pseudo_sum(a: V6, b: V6, len: u32, protocol: Protocol) -> u64 {
        let (a, b) = (a.words(), b.words());
        let mut sum = len.to_be() as u64 + (protocol.0 as u32).to_be() as u64;
        let mut n = 0;
        while n < 4 {
            sum += a[n] as u64 + b[n] as u64;
            n += 1;
        }
        sum
    }

    const HEADER_LEN: u32 = IPV6_LEN;

    #[inline(always)]
    fn store_unreachable(
        skb: Skb,
        packet: &Packet<V6>,
        quoted: u32,
        sum: u32,
    ) -> Result<(), WriteFailed> {
        #[derive(Clone, Copy)]
        #[repr(C)]
        struct Headers {
            ip: Ipv6Header,
            icmp: [u16; 4],
        }
        const TYPE_CODE: u16 = u16::from_ne_bytes([1, 4]);
        let len = ICMP_LEN + quoted;
        let sum = sum as u64
            + TYPE_CODE as u64
            + Self::pseudo_sum(packet.key.src, packet.key.dst, len, Protocol::ICMPV6);
        let headers = Headers {
            ip: Ipv6Header {
                version_class_flow: 0x6000_0000_u32.to_be(),
                payload_length: (len as u16).to_be(),
                next_header: Protocol::ICMPV6,
                hop_limit: ANSWER_TTL,
                src: packet.key.dst,
                dst: packet.key.src,
            },
            icmp: [TYPE_CODE, !checksum::fold(sum), 0, 0],
        };
        skb.store(packet.l3, &headers, true)
    }

    #[inline(always)]
    fn packet_end(skb: Skb, l3: u32) -> Option<u32> {
        let header: Ipv6Header = skb.read(l3)?;
        Some(l3 + IPV6_LEN + u16::from_be(header.payload_length) as u32)
    }

    #[inline(always)]
    fn difference(old: V6, new: V6) -> u32 {
        let (old, new) = (old.words(), new.words());
        let mut sum = 0_u64;
        let mut i = 0;
        while i < 4 {
            sum += !old[i] as u64 + new[i] as u64;
            i += 1;
        }
        fold_32(sum)
    }

    // VERIFIER: inlined, its twenty words fill the callers' stacks with spilled registers.
    #[inline(never)]
    fn check_word(key: &FlowKey<V6>, entry: &FlowEntry<V6>) -> u32 {
        entry.check_for(key)
    }

    #[inline(always)]
    fn is_pod(settings: &Settings, address: V6) -> bool {
        settings::any_contains(&settings.pods_v6, address)
    }
    #[inline(always)]
    fn services(settings: &Settings) -> &Prefix<V6> {
        &settings.services_v6
    }
    #[inline(always)]
    fn internal_address(settings: &Settings) -> V6 {
        settings.internal_v6
    }
    #[inline(always)]
    fn masquerade_address(source: &MasqueradeSource) -> V6 {
        source.v6
    }

    maps_of_family!(
        frontends: FRONTENDS_V6 Frontends, records: RECORDS_V6 Records, backends: BACKENDS_V6 Backends,
        node_addresses: NODE_ADDRESSES_V6 NodeAddresses, source_ranges: SOURCE_RANGES_V6 SourceRanges,
        affinity: AFFINITY_V6 Affinity, flows: FLOWS_V6 Flows, fragments: FRAGMENTS_V6 Fragments
    );

    #[inline(always)]
    fn workspace() -> &'static PerCpuArray<Workspace<V6>, 1> {
        &maps::WORKSPACE_V6
    }
}

/// Extension headers followed, as many as the kernel's own limit for option headers.
const MAX_EXTENSIONS: u32 = 8;

const HOP_BY_HOP: Protocol = Protocol(0);
const ROUTING: Protocol = Protocol(43);
const FRAGMENT: Protocol = Protocol(44);
const AUTHENTICATION: Protocol = Protocol(51);
const DESTINATION_OPTIONS: Protocol = Protocol(60);

#[inline(always)]
fn is_extension(protocol: Protocol) -> bool {
    matches!(
        protocol,
        HOP_BY_HOP | ROUTING | FRAGMENT | AUTHENTICATION | DESTINATION_OPTIONS
    )
}

struct Walked {
    protocol: Protocol,
    l4: u32,
    fragment_id: u32,
    fragmented: bool,
    later_fragment: bool,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Extension {
    next: Protocol,
    len: u8,
    /// Fragment header: offset and flags. Routing header: type, segments left.
    rest: [u8; 2],
    fragment_id: u32,
}

#[inline(always)]
fn walk_extensions(skb: Skb, start: u32, first: Protocol) -> Option<Walked> {
    let mut walked = Walked {
        protocol: first,
        l4: start,
        fragment_id: 0,
        fragmented: false,
        later_fragment: false,
    };
    for _ in 0..MAX_EXTENSIONS {
        if !is_extension(walked.protocol) {
            return Some(walked);
        }
        let header: Extension = skb.load(walked.l4)?;
        let mut len = (header.len as u32 + 1) * 8;
        match walked.protocol {
            // Its destination is not yet the last one.
            ROUTING if header.rest[1] != 0 => return None,
            AUTHENTICATION => len = (header.len as u32 + 2) * 4,
            FRAGMENT => {
                len = 8;
                let offset_flags = u16::from_be_bytes(header.rest);
                walked.fragment_id = header.fragment_id;
                walked.fragmented = offset_flags & 0xfff9 != 0;
                walked.later_fragment = offset_flags & 0xfff8 != 0;
            }
            _ => {}
        }
        walked.protocol = header.next;
        walked.l4 += len;
        if walked.later_fragment {
            return Some(walked);
        }
    }
    (!is_extension(walked.protocol)).then_some(walked)
}
