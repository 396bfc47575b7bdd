// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! IPv6 packets: the header has no checksum and may be followed by a chain of extension headers.

use aya_ebpf::bindings::bpf_fib_lookup;
use proxy_common::{
    FlowKey, Protocol, V6, checksum,
    filter::{Work, is_transport, work_of},
};

use super::{
    NatTarget, Network, Packet, Skb,
    access::{MAX_OFFSET, WriteFailed},
    frame::{Frame, Plain},
    headers::{
        ETHERNET_LEN, ETHERTYPE_IPV6, ICMP_LEN, IPV6_LEN, Ipv6Header, OuterHeader, Ports, Start,
    },
    outer::{self, Outer},
    parse, rewrite,
    wire::{ANSWER_TTL, Ip, Wire, fold_32, length_on_the_wire, transport_parameters},
};

pub enum Ipv6 {}

impl Ip for Ipv6 {
    type Addr = V6;
    type Octets = [u8; 16];
    const VERSION: u32 = 6;
    const ETHERTYPE: u16 = ETHERTYPE_IPV6;
    const ICMP: Protocol = Protocol::ICMPV6;
    const HEADER_LEN: u32 = IPV6_LEN;
    const PROTOCOL: u32 = 6;
    const SOURCE: u32 = 8;
    const LOOPBACK: V6 = V6 {
        octets: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1],
    };

    #[inline(always)]
    fn is_loopback(address: V6) -> bool {
        address.words() == [0, 0, 0, 1_u32.to_be()]
    }
    #[inline(always)]
    fn words(address: V6) -> [u32; 4] {
        address.words()
    }
    #[inline(always)]
    fn octets(address: &V6) -> [u8; 16] {
        address.octets
    }
}

impl Wire for Ipv6 {
    #[inline(always)]
    fn header(skb: Skb, l3: u32) -> Option<Network<V6>> {
        // SAFETY: read before anything else is done.
        let header: &Ipv6Header = unsafe { skb.peek(l3) }?;
        if !header.is_ipv6() {
            return None;
        }
        Some(Network {
            src: header.src(),
            dst: header.dst(),
            protocol: header.next_header,
            l4: l3 + IPV6_LEN,
            ip_checksum: 0,
            fragment_id: 0,
            first_fragment: false,
            later_fragment: false,
        })
    }

    #[inline(always)]
    fn network(skb: Skb, l3: u32) -> Option<Network<V6>> {
        let mut network = Self::header(skb, l3)?;
        if is_extension(network.protocol) {
            walk_extensions(skb, &mut network)?;
        }
        Some(network)
    }

    #[inline(always)]
    fn plain(skb: Skb, l3: u32) -> Option<(V6, Ports)> {
        let start: Start<Ipv6Header> = skb.read(l3)?;
        let plain = start.ip.is_ipv6() && is_transport(start.ip.next_header);
        plain.then_some((start.ip.dst(), start.ports))
    }

    #[inline(always)]
    fn work(skb: Skb, l3: u32) -> Option<(Work, V6)> {
        let Start { ip, ports }: Start<Ipv6Header> = skb.read(l3)?;
        let (next, kind) = (ip.next_header, ports.icmp_type());
        let work = work_of(next, ip.is_ipv6(), is_extension(next), Self::ICMP, kind);
        Some((work, ip.dst()))
    }

    #[inline(never)]
    fn parse(skb: Skb, packet: &mut Packet<V6>) -> bool {
        parse::parse::<Self>(skb, packet).is_some()
    }

    #[inline(never)]
    fn rewrite_destination(skb: Skb, packet: &Packet<V6>, target: &NatTarget<V6>) -> bool {
        rewrite::destination::<Self>(skb, packet, target).is_ok()
    }

    #[inline(never)]
    fn rewrite_both(skb: Skb, packet: &Packet<V6>, ends: &FlowKey<V6>, counted_down: u32) -> bool {
        rewrite::both::<Self>(skb, packet, ends, counted_down).is_ok()
    }

    #[inline(never)]
    fn rewrite_source(skb: Skb, packet: &Packet<V6>, target: &NatTarget<V6>) -> bool {
        rewrite::source::<Self>(skb, packet, target).is_ok()
    }

    #[inline(always)]
    fn store_addresses(
        skb: Skb,
        l3: u32,
        _: u16,
        _: &FlowKey<V6>,
        ends: (V6, V6),
        recompute: bool,
    ) -> Result<(), WriteFailed> {
        // The packet itself needs `recompute`: the transport checksum's helper takes the
        // address change out of the device's sum, because it assumes that a header checksum
        // compensates the change. IPv6 has none, so this adds the change back. (From Linux 6.16 on,
        // BPF_F_IPV6 would do; this works on every kernel.)
        skb.store(l3 + Self::SOURCE, &[ends.0, ends.1], recompute)
    }

    #[inline(always)]
    fn store_ends(
        skb: Skb,
        packet: &Packet<V6>,
        ends: (V6, V6),
        ports: Ports,
    ) -> Result<(), WriteFailed> {
        // Two calls: the change of the ports must not go into the device's sum, because the
        // checksum takes it out again.
        skb.store(packet.l4, &ports, false)?;
        Self::store_addresses(skb, packet.l3, 0, &packet.key, ends, true)
    }

    #[inline(always)]
    fn store_onward(
        skb: Skb,
        packet: &Packet<V6>,
        ends: (V6, V6),
        ports: Ports,
        counted_down: u32,
    ) -> Result<(), WriteFailed> {
        // All of it goes into the device's sum: see `store_addresses`.
        Self::store_hop(skb, packet.l3, counted_down)?;
        Self::store_ends(skb, packet, ends, ports)
    }

    #[inline(always)]
    fn fib_parameters(skb: Skb, l3: u32, parameters: &mut bpf_fib_lookup) -> Option<u32> {
        let header: Ipv6Header = skb.read(l3)?;
        let next = header.next_header;
        if header.hop_limit <= 1 || is_extension(next) {
            return None;
        }
        parameters.family = AF_INET6;
        transport_parameters(skb, l3 + IPV6_LEN, next, parameters)?;
        parameters.__bindgen_anon_1.tot_len = length_on_the_wire(skb, l3, l3 + IPV6_LEN, next)?;
        parameters.__bindgen_anon_2.flowinfo = header.version_class_flow & CLASS_AND_FLOW;
        parameters.__bindgen_anon_3.ipv6_src = header.src().words();
        parameters.__bindgen_anon_4.ipv6_dst = header.dst().words();
        Some(header.hop_limit as u32 - 1)
    }

    #[inline(always)]
    fn fib_destination(parameters: &bpf_fib_lookup) -> V6 {
        // SAFETY: the union is words, and every bit pattern is valid.
        V6::from_words(unsafe { parameters.__bindgen_anon_4.ipv6_dst })
    }

    #[inline(always)]
    fn fib_of_ends(ends: &FlowKey<V6>, parameters: &mut bpf_fib_lookup) {
        parameters.family = AF_INET6;
        parameters.__bindgen_anon_3.ipv6_src = ends.src.words();
        parameters.__bindgen_anon_4.ipv6_dst = ends.dst.words();
    }

    #[inline(always)]
    fn set_fib_destination(parameters: &mut bpf_fib_lookup, address: V6) {
        parameters.__bindgen_anon_4.ipv6_dst = address.words();
    }

    #[inline(always)]
    fn store_hop(skb: Skb, l3: u32, counted_down: u32) -> Result<(), WriteFailed> {
        skb.store(l3 + HOP_LIMIT, &(counted_down as u8), true)
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

    #[inline(always)]
    fn store_unreachable(
        skb: Skb,
        packet: &Packet<V6>,
        quoted: u32,
        sum: u32,
        mtu: u32,
    ) -> Result<(), WriteFailed> {
        #[derive(Clone, Copy)]
        #[repr(C)]
        struct Headers {
            ip: Ipv6Header,
            icmp: [u16; 4],
        }
        let type_code = u16::from_ne_bytes(if mtu == 0 { [1, 4] } else { [2, 0] });
        let mtu = (mtu as u16).to_be();
        let len = ICMP_LEN + quoted;
        let sum = sum as u64
            + type_code as u64
            + mtu as u64
            + Self::pseudo_sum(packet.key.src, packet.key.dst, len, Protocol::ICMPV6);
        let headers = Headers {
            ip: Ipv6Header {
                version_class_flow: 0x6000_0000_u32.to_be(),
                payload_length: (len as u16).to_be(),
                next_header: Protocol::ICMPV6,
                hop_limit: ANSWER_TTL,
                src: packet.key.dst.words(),
                dst: packet.key.src.words(),
            },
            icmp: [type_code, !checksum::fold(sum), 0, mtu],
        };
        skb.store(packet.l3, &headers, true)
    }

    #[inline(always)]
    fn outer(skb: Skb, l3: u32) -> Option<Outer<V6>> {
        let header: OuterHeader<Ipv6Header> = skb.load(l3)?;
        let ip = header.ip;
        let is_whole = ip.is_ipv6() && ip.next_header == Protocol::UDP;
        is_whole.then_some(Outer::new(ip.src(), ip.dst(), &header))
    }

    #[inline(always)]
    fn store_outer(
        skb: Skb,
        l3: u32,
        ends: &FlowKey<V6>,
        class: u32,
        token: u64,
    ) -> Result<(), WriteFailed> {
        let length = outer::length(skb, l3) - IPV6_LEN;
        let ip = Ipv6Header {
            version_class_flow: 0x6000_0000_u32.to_be() | class,
            payload_length: (length as u16).to_be(),
            next_header: Protocol::UDP,
            hop_limit: ANSWER_TTL,
            src: ends.src.words(),
            dst: ends.dst.words(),
        };
        // Without a checksum, as RFC 6935 lets tunnels have it.
        skb.store(l3, &outer::header(ip, ends, length, token), true)
    }

    #[inline(always)]
    fn class(skb: Skb, l3: u32) -> Option<u32> {
        Some(skb.load::<u32>(l3)? & 0x0fc0_0000_u32.to_be())
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

    #[inline(always)]
    fn read_frame(frame: Frame) -> Option<Plain<V6>> {
        let header: Ipv6Header = frame.read(ETHERNET_LEN)?;
        header.is_ipv6().then(|| Plain {
            src: header.src(),
            dst: header.dst(),
            // The number of an extension header is neither TCP's nor UDP's.
            protocol: header.next_header,
            hops: header.hop_limit,
            class: header.version_class_flow & CLASS_AND_FLOW,
            length: IPV6_LEN + u16::from_be(header.payload_length) as u32,
        })
    }

    #[inline(always)]
    fn store_frame(frame: Frame, _: u64, new: &FlowKey<V6>) -> Option<()> {
        let hops: u8 = frame.read(ETHERNET_LEN + HOP_LIMIT)?;
        // By words, as the header's own fields are.
        frame.write(ETHERNET_LEN + 8, [new.src.words(), new.dst.words()])?;
        frame.write(ETHERNET_LEN + HOP_LIMIT, hops.wrapping_sub(1))
    }

    #[inline(always)]
    fn fib_of(packet: &Plain<V6>, ends: &FlowKey<V6>, parameters: &mut bpf_fib_lookup) {
        Self::fib_of_ends(ends, parameters);
        parameters.__bindgen_anon_2.flowinfo = packet.class;
    }
}

const AF_INET6: u8 = 10;
/// Offset of the hop limit in the IPv6 header.
const HOP_LIMIT: u32 = 7;
/// The bits of traffic class and flow label in the header's first word.
const CLASS_AND_FLOW: u32 = 0x0fff_ffff_u32.to_be();
/// Highest offset of a transport header: above it the mask [`MAX_OFFSET`] could change the offset
/// of the header's bytes.
const FURTHEST: u32 = MAX_OFFSET - 0x3f;
/// How many extension headers are followed: as many as the kernel's own limit for option headers.
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

#[derive(Clone, Copy)]
#[repr(C)]
struct Extension {
    next: Protocol,
    len: u8,
    /// Fragment header: offset and flags. Routing header: type, and number of segments left.
    rest: [u8; 2],
    fragment_id: u32,
}

/// Follows the extension headers, up to the transport header or a later fragment's payload.
#[inline(always)]
fn walk_extensions(skb: Skb, network: &mut Network<V6>) -> Option<()> {
    for _ in 0..MAX_EXTENSIONS {
        if network.l4 > FURTHEST {
            return None;
        }
        if !is_extension(network.protocol) {
            return Some(());
        }
        let header: Extension = skb.load(network.l4)?;
        let mut len = (header.len as u32 + 1) * 8;
        match network.protocol {
            // The destination in the header is not the final one.
            ROUTING if header.rest[1] != 0 => return None,
            AUTHENTICATION => len = (header.len as u32 + 2) * 4,
            FRAGMENT => {
                len = 8;
                let offset_flags = u16::from_be_bytes(header.rest);
                network.fragment_id = header.fragment_id;
                network.later_fragment = offset_flags & 0xfff8 != 0;
                network.first_fragment = offset_flags & 0xfff9 == 1;
            }
            _ => {}
        }
        network.protocol = header.next;
        network.l4 += len;
        if network.later_fragment {
            return Some(());
        }
    }
    (!is_extension(network.protocol) && network.l4 <= FURTHEST).then_some(())
}
