// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! From bytes to a [`Packet`]: options, extension headers, fragments. Called by every program.

use proxy_common::{Addr, FlowKey, Port, Protocol, flow::Signals};

use super::{
    access::Skb,
    headers::{self, Ports, TcpOrSctpStart, UdpHeader},
};
use crate::family::Family;

/// What a packet carries behind its IP header.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// TCP, UDP or SCTP.
    Whole,
    /// The first fragment of a datagram: its transport header is there.
    FirstFragment,
    /// Another fragment: no ports in it.
    LaterFragment,
    /// ICMP or ICMPv6; the type is in [`Packet::icmp_type`].
    Icmp,
}

/// A packet's values and offsets; no pointer.
#[derive(Clone, Copy)]
pub struct Packet<A> {
    /// Ports are zero for later fragments and ICMP.
    pub key: FlowKey<A>,
    /// Offsets of the IP and the transport header.
    pub l3: u32,
    pub l4: u32,
    pub shape: Shape,
    pub signals: Signals,
    pub icmp_type: u8,
    /// The IPv4 header's checksum; nothing for IPv6.
    pub ip_checksum: u16,
    /// The datagram's identification, for fragments.
    pub fragment_id: u32,
}

/// What an IP header says, before the transport header is looked at.
#[derive(Clone, Copy)]
pub struct Network<A> {
    pub src: A,
    pub dst: A,
    pub protocol: Protocol,
    pub l4: u32,
    pub ip_checksum: u16,
    pub fragment_id: u32,
    pub first_fragment: bool,
    pub later_fragment: bool,
}

/// IP version of a packet and where its header lies.
#[inline(always)]
pub fn network_offset(skb: Skb, link_layer: bool) -> Option<(u16, u32)> {
    let protocol = skb.protocol();
    if !link_layer {
        return Some((protocol, 0));
    }
    if protocol != headers::ETHERTYPE_VLAN && protocol != headers::ETHERTYPE_QINQ {
        return Some((protocol, headers::ETHERNET_LEN));
    }
    // A tag inside the packet: the true Ethertype lies behind it. Two tags are as many as we follow.
    let mut offset = headers::ETHERNET_LEN + headers::VLAN_LEN;
    let mut inner: u16 = skb.load(offset - 2)?;
    if inner == headers::ETHERTYPE_VLAN {
        offset += headers::VLAN_LEN;
        inner = skb.load(offset - 2)?;
    }
    Some((inner, offset))
}

impl<A: Addr> Packet<A> {
    #[inline(always)]
    pub fn ports(&self) -> Ports {
        Ports {
            src: self.key.src_port,
            dst: self.key.dst_port,
        }
    }
    /// A new packet, nothing read yet.
    #[inline(always)]
    pub fn begin(&mut self, l3: u32) {
        self.key.set_ports(Port::ANY, Port::ANY);
        self.l3 = l3;
        self.shape = Shape::Whole;
        self.signals = Signals::NONE;
    }
}

/// Reads a packet whose IP header lies at `packet.l3`; `None` for what no service can be about or what
/// is cut short.
#[inline(always)]
pub fn parse<F: Family>(skb: Skb, packet: &mut Packet<F::Addr>) -> Option<()> {
    let network = F::network(skb, packet.l3)?;
    parse_behind::<F>(skb, packet, network)
}

/// The same for a packet that is plain: see [`Family::plain`].
#[inline(always)]
pub fn parse_plain<F: Family>(skb: Skb, packet: &mut Packet<F::Addr>) -> Option<()> {
    let network = F::header(skb, packet.l3)?;
    parse_behind::<F>(skb, packet, network)
}

#[inline(always)]
fn parse_behind<F: Family>(
    skb: Skb,
    packet: &mut Packet<F::Addr>,
    network: Network<F::Addr>,
) -> Option<()> {
    packet.key.src = network.src;
    packet.key.dst = network.dst;
    packet.key.set_protocol(network.protocol);
    packet.l4 = network.l4;
    packet.ip_checksum = network.ip_checksum;
    packet.fragment_id = network.fragment_id;
    if network.later_fragment {
        packet.shape = Shape::LaterFragment;
        return is_transport(network.protocol).then_some(());
    }
    if network.first_fragment {
        packet.shape = Shape::FirstFragment;
    }
    match network.protocol {
        Protocol::UDP => {
            let udp: UdpHeader = skb.read(network.l4)?;
            packet.key.set_ports(udp.ports.src, udp.ports.dst);
        }
        Protocol::TCP => {
            let tcp: TcpOrSctpStart = skb.read(network.l4)?;
            packet.key.set_ports(tcp.ports.src, tcp.ports.dst);
            packet.signals = Signals(tcp.flags);
        }
        Protocol::SCTP => {
            let sctp: TcpOrSctpStart = skb.read(network.l4)?;
            packet.key.set_ports(sctp.ports.src, sctp.ports.dst);
            packet.signals = Signals::from_sctp_chunk(sctp.offset_or_chunk);
        }
        protocol if protocol == F::ICMP => {
            packet.shape = Shape::Icmp;
            packet.icmp_type = skb.read(network.l4)?;
        }
        _ => return None,
    }
    Some(())
}

/// The protocols that a service port can have.
#[inline(always)]
pub fn is_transport(protocol: Protocol) -> bool {
    matches!(protocol, Protocol::TCP | Protocol::UDP | Protocol::SCTP)
}
