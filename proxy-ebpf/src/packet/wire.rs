// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! All that differs between IPv4 and IPv6 on the wire, as two traits. `ipv4` and `ipv6` implement
//! the traits; parsing, rewriting and answering are generic over them.

use aya_ebpf::bindings::bpf_fib_lookup;
use aya_log_ebpf::macro_support::{Argument, IpFormatter};
use proxy_common::{Addr, FlowKey, Protocol, filter::Work};

use super::{
    NatTarget, Network, Packet, Skb,
    access::WriteFailed,
    frame::{Frame, Plain},
    headers::{Ports, TcpOrSctpStart},
    outer::Outer,
    parse, rewrite,
};

/// An IP family: its addresses and numbers.
pub trait Ip: 'static {
    type Addr: Addr;
    type Octets: Argument + IpFormatter;
    /// The IP version: 4 or 6.
    const VERSION: u32;
    const ETHERTYPE: u16;
    const ICMP: Protocol;
    /// Length of an IP header without options.
    const HEADER_LEN: u32;
    /// Offset of the transport protocol's number in an IP header without options.
    const PROTOCOL: u32;
    /// Offset of the source address in the IP header.
    const SOURCE: u32;
    /// The one address that stands for all loopback addresses of the node.
    const LOOPBACK: Self::Addr;

    fn is_loopback(address: Self::Addr) -> bool;
    /// Returns an address as four words, as on the wire; an IPv4 address is the last of them.
    fn words(address: Self::Addr) -> [u32; 4];
    /// Returns the octets of an address, for a log line.
    fn octets(address: &Self::Addr) -> Self::Octets;
}

/// Reads and writes the headers of an IP family.
pub trait Wire: Ip + Sized {
    /// Reads the IP header at `l3`; None if it is incomplete or of another version.
    fn header(skb: Skb, l3: u32) -> Option<Network<Self::Addr>>;
    /// Reads the IP header at `l3` and the extension headers between it and the transport header;
    /// None if one of them cannot be read.
    #[inline(always)]
    fn network(skb: Skb, l3: u32) -> Option<Network<Self::Addr>> {
        Self::header(skb, l3)
    }
    /// Returns destination and ports of a plain packet: one without options, extensions or
    /// fragments, whose transport a service can have. `None` for any other packet.
    fn plain(skb: Skb, l3: u32) -> Option<(Self::Addr, Ports)>;
    /// Returns how a packet must be examined, and its destination. `None` if the packet's first
    /// bytes are not in the linear part of the buffer.
    fn work(skb: Skb, l3: u32) -> Option<(Work, Self::Addr)>;
    /// [`parse::parse`], inlined for IPv4; `false` for a packet that cannot concern a service.
    // VERIFIER: for IPv6 this and the next two are subprograms: their copies of addresses would
    // fill the callers' stacks.
    #[inline(always)]
    fn parse(skb: Skb, packet: &mut Packet<Self::Addr>) -> bool {
        parse::parse::<Self>(skb, packet).is_some()
    }
    /// [`rewrite::destination`], inlined for IPv4; `false` when a helper refused to write.
    #[inline(always)]
    fn rewrite_destination(
        skb: Skb,
        packet: &Packet<Self::Addr>,
        target: &NatTarget<Self::Addr>,
    ) -> bool {
        rewrite::destination::<Self>(skb, packet, target).is_ok()
    }
    /// [`rewrite::both`], inlined for IPv4; `false` when a helper refused to write.
    #[inline(always)]
    fn rewrite_both(
        skb: Skb,
        packet: &Packet<Self::Addr>,
        ends: &FlowKey<Self::Addr>,
        counted_down: u32,
    ) -> bool {
        rewrite::both::<Self>(skb, packet, ends, counted_down).is_ok()
    }
    /// [`rewrite::source`], inlined for IPv4; `false` when a helper refused to write.
    #[inline(always)]
    fn rewrite_source(
        skb: Skb,
        packet: &Packet<Self::Addr>,
        target: &NatTarget<Self::Addr>,
    ) -> bool {
        rewrite::source::<Self>(skb, packet, target).is_ok()
    }

    /// Writes both addresses (`ends`: source, destination) into the IP header at `l3`, and its
    /// checksum where there is one: `ip_checksum` and `old` have the values before. Without a
    /// checksum, `recompute` is that of [`Skb::store`].
    fn store_addresses(
        skb: Skb,
        l3: u32,
        ip_checksum: u16,
        old: &FlowKey<Self::Addr>,
        ends: (Self::Addr, Self::Addr),
        recompute: bool,
    ) -> Result<(), WriteFailed>;
    /// Writes both addresses (`ends`: source, destination), the IP header's checksum where there is
    /// one, and both ports. The caller must update the transport's checksum.
    fn store_ends(
        skb: Skb,
        packet: &Packet<Self::Addr>,
        ends: (Self::Addr, Self::Addr),
        ports: Ports,
    ) -> Result<(), WriteFailed>;
    /// Like [`Self::store_ends`], for a packet without options or extension headers; also writes
    /// the hop limit as [`Self::store_hop`] does.
    fn store_onward(
        skb: Skb,
        packet: &Packet<Self::Addr>,
        ends: (Self::Addr, Self::Addr),
        ports: Ports,
        counted_down: u32,
    ) -> Result<(), WriteFailed>;
    /// Fills in the packet's part of a FIB look-up, and returns the hop limit counted down, in the
    /// form that [`Self::store_hop`] writes; `None` for a packet that the stack must route.
    fn fib_parameters(skb: Skb, l3: u32, parameters: &mut bpf_fib_lookup) -> Option<u32>;
    /// Returns the destination of a FIB look-up; after a successful look-up, that is the next hop.
    fn fib_destination(parameters: &bpf_fib_lookup) -> Self::Addr;
    /// Fills in the addresses of a FIB look-up.
    fn fib_of_ends(ends: &FlowKey<Self::Addr>, parameters: &mut bpf_fib_lookup);
    /// Replaces the destination of a FIB look-up.
    fn set_fib_destination(parameters: &mut bpf_fib_lookup, address: Self::Addr);
    /// Writes the hop limit that [`Self::fib_parameters`] has counted down, and the IP header's
    /// checksum where there is one.
    fn store_hop(skb: Skb, l3: u32, counted_down: u32) -> Result<(), WriteFailed>;
    /// Makes the IP header that of an answer with `len` bytes of transport header and payload.
    fn turn_around(skb: Skb, packet: &Packet<Self::Addr>, len: u32) -> Result<(), WriteFailed>;
    /// Returns the sum over a transport protocol's pseudo header, not folded.
    fn pseudo_sum(a: Self::Addr, b: Self::Addr, len: u32, protocol: Protocol) -> u64;
    /// Writes the IP and ICMP headers of a port unreachable error in front of the quoted bytes; if
    /// `mtu` is not 0, of the error that the packet is too large. `quoted` is their number, `sum`
    /// their sum.
    fn store_unreachable(
        skb: Skb,
        packet: &Packet<Self::Addr>,
        quoted: u32,
        sum: u32,
        mtu: u32,
    ) -> Result<(), WriteFailed>;
    /// Returns the outer header at `l3`; `None` if that is no UDP datagram
    /// long enough.
    fn outer(skb: Skb, l3: u32) -> Option<Outer<Self::Addr>>;
    /// Writes the outer header from and to the ends of `ends`, which is UDP's, into the bytes that
    /// were inserted for it. `class` is the inner packet's class of service, as it stands in the
    /// header.
    fn store_outer(
        skb: Skb,
        l3: u32,
        ends: &FlowKey<Self::Addr>,
        class: u32,
        token: u64,
    ) -> Result<(), WriteFailed>;
    /// Returns the class of service in the IP header at `l3`, without the bits for congestion.
    fn class(skb: Skb, l3: u32) -> Option<u32>;
    /// Returns the offset at which the packet ends according to its IP header; padding may follow.
    /// None if the header is incomplete.
    fn packet_end(skb: Skb, l3: u32) -> Option<u32>;
    /// Returns the ones' complement sum that a change of address adds, folded to 32 bits.
    fn difference(old: Self::Addr, new: Self::Addr) -> u32;

    /// Reads a plain packet from a frame without a tag; `None` for any other frame.
    fn read_frame(frame: Frame) -> Option<Plain<Self::Addr>>;
    /// Writes both addresses of `new` and one hop less into a frame that [`Self::read_frame`] has
    /// read, and the IP header's checksum where there is one; `addresses` is the sum that the
    /// change of addresses adds. None if the frame is too short.
    fn store_frame(frame: Frame, addresses: u64, new: &FlowKey<Self::Addr>) -> Option<()>;
    /// Fills in the part of a FIB look-up that comes from a plain packet's values, with the
    /// addresses of `ends`.
    fn fib_of(
        packet: &Plain<Self::Addr>,
        ends: &FlowKey<Self::Addr>,
        parameters: &mut bpf_fib_lookup,
    );
}

/// Returns the length of a packet, or of each of its segments, from its IP header on; None if the
/// segments' length is not known.
#[inline(always)]
pub(super) fn length_on_the_wire(skb: Skb, l3: u32, l4: u32, protocol: Protocol) -> Option<u16> {
    let payload = skb.segment_payload();
    if payload == 0 {
        return Some((skb.len() - l3) as u16);
    }
    if protocol != Protocol::TCP {
        return None;
    }
    let tcp: TcpOrSctpStart = skb.read(l4)?;
    let header = (tcp.offset_or_chunk >> 4) as u32 * 4;
    Some((l4 - l3 + header + payload) as u16)
}

/// Fills in the transport's part of a FIB look-up: rules may match protocol and ports, and the
/// ports select one of several next hops. An ICMP error has no ports, so it may take another next
/// hop than its flow. `None` for an extension header or a header that cannot be read.
#[inline(always)]
pub(super) fn transport_parameters(
    skb: Skb,
    l4: u32,
    protocol: Protocol,
    parameters: &mut bpf_fib_lookup,
) -> Option<()> {
    parameters.l4_protocol = protocol.0;
    if matches!(protocol, Protocol::ICMP | Protocol::ICMPV6) {
        return Some(());
    }
    if !matches!(protocol, Protocol::TCP | Protocol::UDP | Protocol::SCTP) {
        return None;
    }
    let ports: Ports = skb.read(l4)?;
    parameters.sport = ports.src.0;
    parameters.dport = ports.dst.0;
    Some(())
}

/// Hop limit of the answers that the programs make themselves.
pub(super) const ANSWER_TTL: u8 = 64;

/// Folds a 64-bit sum to 32 bits; carries are added back.
#[inline(always)]
pub fn fold_32(sum: u64) -> u32 {
    let sum = (sum >> 32) + (sum & 0xffff_ffff);
    ((sum >> 32) + (sum & 0xffff_ffff)) as u32
}
