// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! All that differs between IPv4 and IPv6: header layout and maps. Everything else is generic over it.

mod ipv4;
mod ipv6;

use aya_ebpf::{bindings::bpf_fib_lookup, btf_maps::PerCpuArray};
use aya_log_ebpf::macro_support::{Argument, IpFormatter};
use proxy_common::{
    Addr, FlowEntry, FlowKey, Port, Prefix, Protocol, Settings, SocketEntry, SocketKey,
    masquerade::MasqueradeSource,
};

use crate::{
    maps::{
        Affinity, Backends, Flows, Fragments, Frontends, NodeAddresses, Records, SocketBuckets,
        Sockets, SourceRanges, Workspace,
    },
    packet::{
        Packet, Skb,
        access::WriteFailed,
        headers::{Ports, TcpOrSctpStart},
        parse::Network,
    },
    rewrite::To,
};

pub use self::{ipv4::Ipv4, ipv6::Ipv6};

/// An IP family.
pub trait Family: 'static {
    type Addr: Addr;
    type Octets: Argument + IpFormatter;
    /// 4 or 6.
    const VERSION: u32;
    const ETHERTYPE: u16;
    const ICMP: Protocol;

    /// Reads the IP header at `l3`.
    fn header(skb: Skb, l3: u32) -> Option<Network<Self::Addr>>;
    /// The same with what lies between it and the transport header.
    fn network(skb: Skb, l3: u32) -> Option<Network<Self::Addr>>;
    /// Destination and ports of a packet without options, extensions or fragments, whose transport a service
    /// can have.
    fn plain(skb: Skb, l3: u32) -> Option<(Self::Addr, Ports)>;
    /// [`crate::packet::parse::parse`] and [`crate::rewrite`]'s two, inlined for IPv4.
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
    /// The same with the ports, whose change the transport's checksum makes up for.
    fn store_ends(
        skb: Skb,
        packet: &Packet<Self::Addr>,
        ends: (Self::Addr, Self::Addr),
        ports: Ports,
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
    /// Fills in what a route depends on besides the interface; none for what the stack shall route. The value is what
    /// [`Self::store_aged`] writes.
    fn ask_route(skb: Skb, l3: u32, route: &mut bpf_fib_lookup) -> Option<u32>;
    /// Writes the hop limit that is left after this hop, and the header's checksum where there is one.
    fn store_aged(skb: Skb, l3: u32, aged: u32) -> Result<(), WriteFailed>;
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

    /// The address that stands for all of the node's own loopback.
    const LOOPBACK: Self::Addr;
    fn is_loopback(address: Self::Addr) -> bool;
    /// The check word of a socket's entry under a key.
    fn socket_check_word(key: &SocketKey<Self::Addr>, entry: &SocketEntry<Self::Addr>) -> u32;

    /// An address as a line shows it.
    fn octets(address: &Self::Addr) -> Self::Octets;
    fn is_pod(settings: &Settings, address: Self::Addr) -> bool;
    fn services(settings: &Settings) -> &Prefix<Self::Addr>;
    /// The id of the record that a destination leads to: see [`crate::service::find`].
    fn find_record(address: Self::Addr, port: Port, protocol: Protocol) -> u32;
    /// Whether it lies where cluster IPs are allocated, and what nobody has is to be dropped there.
    fn is_allocatable(address: Self::Addr) -> bool;
    fn internal_address(settings: &Settings) -> Self::Addr;
    fn masquerade_address(source: &MasqueradeSource) -> Self::Addr;

    fn frontends() -> &'static Frontends<Self::Addr>;
    fn records() -> &'static Records<Self::Addr>;
    fn backends() -> &'static Backends<Self::Addr>;
    fn node_addresses() -> &'static NodeAddresses<Self::Addr>;
    fn source_ranges() -> &'static SourceRanges<Self::Addr>;
    fn affinity() -> &'static Affinity<Self::Addr>;
    fn flows() -> &'static Flows<Self::Addr>;
    fn sockets() -> &'static Sockets<Self::Addr>;
    fn socket_buckets() -> &'static SocketBuckets<Self::Addr>;
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
use maps_of_family;

/// Length of a packet, or of each of those that it is to be cut into, from its IP header on.
#[inline(always)]
fn length_on_the_wire(skb: Skb, l3: u32, l4: u32, protocol: Protocol) -> Option<u16> {
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

/// Time to live of what the programs send themselves.
const ANSWER_TTL: u8 = 64;

/// Sum of a 64-bit intermediate folded to 32 bits, carries added back.
#[inline(always)]
pub fn fold_32(sum: u64) -> u32 {
    let sum = (sum >> 32) + (sum & 0xffff_ffff);
    ((sum >> 32) + (sum & 0xffff_ffff)) as u32
}
