// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! Parses a packet's bytes into a [`Packet`]: options, extension headers, fragments. Called by the
//! entry points.

use proxy_common::{Addr, Protocol, filter::is_transport, flow::Signals};

use super::{
    Network, Packet, Shape, Skb,
    headers::{self, TcpOrSctpStart, UdpHeader},
    wire::Wire,
};

/// Returns a packet's Ethertype and the offset of its IP header; None if a VLAN tag is cut short.
#[inline(always)]
pub fn network_offset(skb: Skb, link_layer: bool) -> Option<(u16, u32)> {
    let protocol = skb.protocol();
    if !link_layer {
        return Some((protocol, 0));
    }
    if protocol != headers::ETHERTYPE_VLAN && protocol != headers::ETHERTYPE_QINQ {
        return Some((protocol, headers::ETHERNET_LEN));
    }
    // A tag inside the packet: the Ethertype follows it. At most two tags are followed.
    let mut offset = headers::ETHERNET_LEN + headers::VLAN_LEN;
    let mut inner: u16 = skb.load(offset - 2)?;
    if inner == headers::ETHERTYPE_VLAN {
        offset += headers::VLAN_LEN;
        inner = skb.load(offset - 2)?;
    }
    Some((inner, offset))
}

/// Returns the VLAN id in a frame's outermost tag, in the packet or out of band; 0 without a tag. A
/// tag with id 0 has only a priority, and the kernel looks at the tag behind it.
#[inline(always)]
pub fn vlan_id(skb: Skb) -> u32 {
    let beside = skb.vlan_id();
    let protocol = skb.protocol();
    if beside != 0 || protocol != headers::ETHERTYPE_VLAN && protocol != headers::ETHERTYPE_QINQ {
        return beside;
    }
    match skb.load::<u16>(headers::ETHERNET_LEN) {
        Some(tag) => (u16::from_be(tag) & Skb::VLAN_ID) as u32,
        None => 0,
    }
}

/// Parses a packet whose IP header lies at `packet.l3`; `None` for a protocol that no service can
/// have, and for a packet that is cut short.
#[inline(always)]
pub fn parse<F: Wire>(skb: Skb, packet: &mut Packet<F::Addr>) -> Option<()> {
    let network = F::network(skb, packet.l3)?;
    parse_behind::<F>(skb, packet, network)
}

/// Parses a packet that is known to be plain, see [`Wire::plain`], or a plain echo request. None if
/// it is cut short.
#[inline(always)]
pub fn parse_plain<F: Wire>(skb: Skb, packet: &mut Packet<F::Addr>) -> Option<()> {
    let network = F::header(skb, packet.l3)?;
    parse_behind::<F>(skb, packet, network)
}

/// Parses only the IP header, without extension headers; ports are zero. None if it is cut short.
#[inline(always)]
pub fn parse_network<F: Wire>(skb: Skb, packet: &mut Packet<F::Addr>) -> Option<()> {
    fill_in(packet, &F::header(skb, packet.l3)?);
    Some(())
}

#[inline(always)]
fn fill_in<A: Addr>(packet: &mut Packet<A>, network: &Network<A>) {
    packet.key.src = network.src;
    packet.key.dst = network.dst;
    packet.key.set_protocol(network.protocol);
    packet.l4 = network.l4;
    packet.ip_checksum = network.ip_checksum;
    packet.fragment_id = network.fragment_id;
    if network.later_fragment {
        packet.shape = Shape::LaterFragment;
    } else if network.first_fragment {
        packet.shape = Shape::FirstFragment;
    }
}

#[inline(always)]
fn parse_behind<F: Wire>(
    skb: Skb,
    packet: &mut Packet<F::Addr>,
    network: Network<F::Addr>,
) -> Option<()> {
    fill_in(packet, &network);
    if network.later_fragment {
        return is_transport(network.protocol).then_some(());
    }
    match network.protocol {
        Protocol::UDP => {
            let udp: UdpHeader = skb.read(network.l4)?;
            packet.key.set_ports(udp.ports.src, udp.ports.dst);
        }
        Protocol::TCP | Protocol::SCTP => {
            let start: TcpOrSctpStart = skb.read(network.l4)?;
            packet.key.set_ports(start.ports.src, start.ports.dst);
            packet.signals = signals_of(network.protocol, &start);
        }
        protocol if protocol == F::ICMP => {
            packet.shape = Shape::Icmp;
            packet.icmp_type = skb.read(network.l4)?;
        }
        _ => return None,
    }
    Some(())
}

/// Returns protocol and signals of a plain packet, see [`Wire::plain`]; None if it is cut short.
#[inline(always)]
pub fn plain_start<F: Wire>(skb: Skb, l3: u32) -> Option<(Protocol, Signals)> {
    let protocol = Protocol(skb.read(l3 + F::PROTOCOL)?);
    if protocol == Protocol::UDP {
        return Some((protocol, Signals::NONE));
    }
    let start: TcpOrSctpStart = skb.read(l3 + F::HEADER_LEN)?;
    Some((protocol, signals_of(protocol, &start)))
}

#[inline(always)]
fn signals_of(protocol: Protocol, start: &TcpOrSctpStart) -> Signals {
    if protocol == Protocol::SCTP {
        Signals::from_sctp_chunk(start.offset_or_chunk)
    } else {
        Signals(start.flags)
    }
}
