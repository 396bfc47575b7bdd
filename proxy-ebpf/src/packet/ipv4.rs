// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! IPv4 packets: the header has a checksum and may have options.

use aya_ebpf::bindings::bpf_fib_lookup;
use proxy_common::{
    FlowKey, Protocol, V4, check, checksum,
    filter::{Work, is_transport, work_of},
};

use super::{
    Network, Packet, Skb,
    access::WriteFailed,
    frame::{self, Frame, Plain},
    headers::{
        ETHERNET_LEN, ETHERTYPE_IPV4, ICMP_LEN, IPV4_LEN, Ipv4Header, OuterHeader, Ports, Start,
    },
    outer::{self, Outer},
    wire::{ANSWER_TTL, Ip, Wire, fold_32, length_on_the_wire, transport_parameters},
};

/// The bytes of an IPv4 header from its checksum on, without options.
#[repr(C)]
#[derive(Clone, Copy)]
struct Tail {
    checksum: u16,
    // In halves: the struct begins at the header's tenth byte, without padding.
    src: [u16; 2],
    dst: [u16; 2],
}

/// The end of a header without options, followed by the ports.
#[repr(C)]
#[derive(Clone, Copy)]
struct LongTail {
    tail: Tail,
    ports: Ports,
}

/// Offset in the IPv4 header at which both `Tail` and `LongTail` begin.
const TAIL: u32 = 10;
/// Offset in the IPv4 header of the time to live; the protocol follows, then the checksum.
const TTL: u32 = 8;
const AF_INET: u8 = 2;

impl Tail {
    /// Returns new addresses (source, destination) and the checksum for them. In the device's sum
    /// over the packet, the changes of addresses and checksum cancel out.
    #[inline(always)]
    fn new(ip_checksum: u16, old: &FlowKey<V4>, new: (V4, V4)) -> Self {
        let halves = |address: V4| {
            let [a, b, c, d] = address.octets;
            [u16::from_ne_bytes([a, b]), u16::from_ne_bytes([c, d])]
        };
        let sum = !ip_checksum as u64
            + !old.src.word() as u64
            + new.0.word() as u64
            + !old.dst.word() as u64
            + new.1.word() as u64;
        Self {
            checksum: !checksum::fold(sum),
            src: halves(new.0),
            dst: halves(new.1),
        }
    }
}

pub enum Ipv4 {}

impl Ip for Ipv4 {
    type Addr = V4;
    type Octets = [u8; 4];
    const VERSION: u32 = 4;
    const ETHERTYPE: u16 = ETHERTYPE_IPV4;
    const ICMP: Protocol = Protocol::ICMP;
    const HEADER_LEN: u32 = IPV4_LEN;
    const PROTOCOL: u32 = 9;
    const SOURCE: u32 = 12;
    const LOOPBACK: V4 = V4 {
        octets: [127, 0, 0, 1],
    };

    #[inline(always)]
    fn is_loopback(address: V4) -> bool {
        address.octets[0] == 127
    }
    #[inline(always)]
    fn words(address: V4) -> [u32; 4] {
        [0, 0, 0, address.word()]
    }
    #[inline(always)]
    fn octets(address: &V4) -> [u8; 4] {
        address.octets
    }
}

impl Wire for Ipv4 {
    #[inline(always)]
    fn header(skb: Skb, l3: u32) -> Option<Network<V4>> {
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
    fn plain(skb: Skb, l3: u32) -> Option<(V4, Ports)> {
        let Start { ip, ports }: Start<Ipv4Header> = skb.read(l3)?;
        let plain = ip.is_plain() && is_transport(ip.protocol);
        plain.then_some((ip.dst, ports))
    }

    #[inline(always)]
    fn work(skb: Skb, l3: u32) -> Option<(Work, V4)> {
        let Start { ip, ports }: Start<Ipv4Header> = skb.read(l3)?;
        let (protocol, is_plain) = (ip.protocol, ip.is_plain());
        let work = work_of(protocol, is_plain, false, Self::ICMP, ports.icmp_type());
        Some((work, ip.dst))
    }

    #[inline(always)]
    fn store_addresses(
        skb: Skb,
        l3: u32,
        ip_checksum: u16,
        old: &FlowKey<V4>,
        ends: (V4, V4),
        _: bool,
    ) -> Result<(), WriteFailed> {
        skb.store(l3 + TAIL, &Tail::new(ip_checksum, old, ends), false)
    }

    #[inline(always)]
    fn store_ends(
        skb: Skb,
        packet: &Packet<V4>,
        ends: (V4, V4),
        ports: Ports,
    ) -> Result<(), WriteFailed> {
        let tail = Tail::new(packet.ip_checksum, &packet.key, ends);
        if packet.l4 == packet.l3 + IPV4_LEN {
            // One call for both.
            return skb.store(packet.l3 + TAIL, &LongTail { tail, ports }, false);
        }
        skb.store(packet.l4, &ports, false)?;
        skb.store(packet.l3 + TAIL, &tail, false)
    }

    #[inline(always)]
    fn store_onward(
        skb: Skb,
        packet: &Packet<V4>,
        ends: (V4, V4),
        ports: Ports,
        counted_down: u32,
    ) -> Result<(), WriteFailed> {
        #[derive(Clone, Copy)]
        #[repr(C)]
        struct FromTtl {
            ttl_protocol: u16,
            end: LongTail,
        }
        let [a, b, c, d] = counted_down.to_ne_bytes();
        let tail = Tail::new(u16::from_ne_bytes([c, d]), &packet.key, ends);
        let ttl_protocol = u16::from_ne_bytes([a, b]);
        let end = LongTail { tail, ports };
        // One call for all.
        skb.store(packet.l3 + TTL, &FromTtl { ttl_protocol, end }, false)
    }

    #[inline(always)]
    fn fib_parameters(skb: Skb, l3: u32, parameters: &mut bpf_fib_lookup) -> Option<u32> {
        let mut header: Ipv4Header = skb.read(l3)?;
        if header.ttl <= 1
            || header.len() != IPV4_LEN
            || header.fragment & (Ipv4Header::MORE_FRAGMENTS | Ipv4Header::OFFSET) != 0
        {
            return None;
        }
        let l4 = l3 + IPV4_LEN;
        parameters.family = AF_INET;
        transport_parameters(skb, l4, header.protocol, parameters)?;
        parameters.__bindgen_anon_1.tot_len = length_on_the_wire(skb, l3, l4, header.protocol)?;
        parameters.__bindgen_anon_2.tos = header.tos;
        parameters.__bindgen_anon_3.ipv4_src = header.src.word();
        parameters.__bindgen_anon_4.ipv4_dst = header.dst.word();
        let old = header.ttl_protocol();
        header.ttl -= 1;
        let new = header.ttl_protocol();
        let checksum = checksum::replace_half(header.checksum, old, new);
        Some(check::join(new, checksum))
    }

    #[inline(always)]
    fn fib_destination(parameters: &bpf_fib_lookup) -> V4 {
        // SAFETY: the union is words, and every bit pattern is valid.
        V4::from_word(unsafe { parameters.__bindgen_anon_4.ipv4_dst })
    }

    #[inline(always)]
    fn fib_of_ends(ends: &FlowKey<V4>, parameters: &mut bpf_fib_lookup) {
        parameters.family = AF_INET;
        parameters.__bindgen_anon_3.ipv4_src = ends.src.word();
        parameters.__bindgen_anon_4.ipv4_dst = ends.dst.word();
    }

    #[inline(always)]
    fn set_fib_destination(parameters: &mut bpf_fib_lookup, address: V4) {
        parameters.__bindgen_anon_4.ipv4_dst = address.word();
    }

    #[inline(always)]
    fn store_hop(skb: Skb, l3: u32, counted_down: u32) -> Result<(), WriteFailed> {
        // The checksum makes up for the change in the device's sum.
        skb.store(l3 + TTL, &counted_down, false)
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

    #[inline(always)]
    fn store_unreachable(
        skb: Skb,
        packet: &Packet<V4>,
        quoted: u32,
        sum: u32,
        mtu: u32,
    ) -> Result<(), WriteFailed> {
        #[derive(Clone, Copy)]
        #[repr(C)]
        struct Headers {
            ip: Ipv4Header,
            icmp: [u16; 4],
        }
        let type_code = u16::from_ne_bytes([3, if mtu == 0 { 3 } else { 4 }]);
        let mtu = (mtu as u16).to_be();
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
                type_code,
                !checksum::fold(sum as u64 + type_code as u64 + mtu as u64),
                0,
                mtu,
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
    fn outer(skb: Skb, l3: u32) -> Option<Outer<V4>> {
        let header: OuterHeader<Ipv4Header> = skb.load(l3)?;
        let ip = header.ip;
        let is_whole = ip.is_plain() && ip.protocol == Protocol::UDP;
        is_whole.then_some(Outer::new(ip.src, ip.dst, &header))
    }

    #[inline(always)]
    fn store_outer(
        skb: Skb,
        l3: u32,
        ends: &FlowKey<V4>,
        class: u32,
        token: u64,
    ) -> Result<(), WriteFailed> {
        let length = outer::length(skb, l3);
        let mut ip = Ipv4Header {
            version_ihl: 0x45,
            tos: class as u8,
            total_length: (length as u16).to_be(),
            id: 0,
            fragment: Ipv4Header::DONT_FRAGMENT,
            ttl: ANSWER_TTL,
            protocol: Protocol::UDP,
            checksum: 0,
            src: ends.src,
            dst: ends.dst,
        };
        let sum = u16::from_ne_bytes([0x45, ip.tos]) as u64
            + ip.total_length as u64
            + ip.fragment as u64
            + ip.ttl_protocol() as u64
            + ip.src.word() as u64
            + ip.dst.word() as u64;
        ip.checksum = !checksum::fold(sum);
        skb.store(l3, &outer::header(ip, ends, length - IPV4_LEN, token), true)
    }

    #[inline(always)]
    fn class(skb: Skb, l3: u32) -> Option<u32> {
        Some((skb.load::<u8>(l3 + 1)? & 0xfc) as u32)
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
    fn read_frame(frame: Frame) -> Option<Plain<V4>> {
        let header: Ipv4Header = frame.read(ETHERNET_LEN)?;
        header.is_plain().then_some(Plain {
            src: header.src,
            dst: header.dst,
            protocol: header.protocol,
            hops: header.ttl,
            class: header.tos as u32,
            length: u16::from_be(header.total_length) as u32,
        })
    }

    #[inline(always)]
    fn store_frame(frame: Frame, addresses: u64, new: &FlowKey<V4>) -> Option<()> {
        let old: HopsAndChecksum = frame.read(ETHERNET_LEN + TTL)?;
        let [hops, protocol] = old.hops_protocol.to_ne_bytes();
        let hops_protocol = u16::from_ne_bytes([hops.wrapping_sub(1), protocol]);
        let sum = addresses + !old.hops_protocol as u64 + hops_protocol as u64;
        let tail = FrameTail {
            hops: HopsAndChecksum {
                hops_protocol,
                checksum: frame::changed(old.checksum, sum),
            },
            src: new.src,
            dst: new.dst,
        };
        frame.write(ETHERNET_LEN + TTL, tail)
    }

    #[inline(always)]
    fn fib_of(packet: &Plain<V4>, ends: &FlowKey<V4>, parameters: &mut bpf_fib_lookup) {
        Self::fib_of_ends(ends, parameters);
        parameters.__bindgen_anon_2.tos = packet.class as u8;
    }
}

/// Time to live and protocol, and the header checksum, which follows.
#[repr(C)]
#[derive(Clone, Copy)]
struct HopsAndChecksum {
    hops_protocol: u16,
    checksum: u16,
}

/// The bytes of a header without options from its time to live on.
#[repr(C)]
#[derive(Clone, Copy)]
struct FrameTail {
    hops: HopsAndChecksum,
    src: V4,
    dst: V4,
}
