// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! The packet that an ICMP error quotes: reads it, and translates it together with the error.
//! Called by `icmp`.

use proxy_common::{
    FlowKey, Protocol, checksum,
    filter::{REDIRECT_V4, REDIRECT_V6, is_icmp_error, is_transport},
};

use super::{
    Packet, Skb,
    access::WriteFailed,
    headers::{ICMP_CHECKSUM, ICMP_LEN, IPV6_LEN, Ports, TCP_CHECKSUM, UDP_CHECKSUM},
    wire::{Wire, fold_32},
};

/// Offsets of the headers of a packet that an ICMP error quotes, and the checksum in its IPv4
/// header.
pub struct Quote {
    l3: u32,
    l4: u32,
    ip_checksum: u16,
}

/// Whether a packet is an ICMP redirect.
#[inline(always)]
pub fn is_redirect<F: Wire>(packet: &Packet<F::Addr>) -> bool {
    packet.icmp_type
        == if F::ICMP == Protocol::ICMP {
            REDIRECT_V4
        } else {
            REDIRECT_V6
        }
}

/// Reads the packet that an ICMP error quotes; its tuple is written into `quoted`. None if the
/// message is no error, or if the quoted packet is not TCP, UDP or SCTP or has no ports.
#[inline(always)]
pub fn read<F: Wire>(
    skb: Skb,
    packet: &Packet<F::Addr>,
    quoted: &mut FlowKey<F::Addr>,
) -> Option<Quote> {
    if !is_icmp_error(F::ICMP, packet.icmp_type) {
        return None;
    }
    let l3 = if packet.icmp_type == REDIRECT_V6 {
        redirected_header(skb, packet.l4)?
    } else {
        packet.l4 + ICMP_LEN
    };
    let network = F::network(skb, l3)?;
    if network.later_fragment || !is_transport(network.protocol) {
        return None;
    }
    let ports: Ports = skb.load(network.l4)?;
    quoted.assign(
        &network.src,
        ports.src,
        &network.dst,
        ports.dst,
        network.protocol,
    );
    Some(Quote {
        l3,
        l4: network.l4,
        ip_checksum: network.ip_checksum,
    })
}

/// Returns the offset of the IP header that an ICMPv6 redirect quotes. The header lies in an
/// option, which may follow the option of the link-layer address (RFC 4861, 4.5). None without that
/// option.
#[inline(always)]
fn redirected_header(skb: Skb, l4: u32) -> Option<u32> {
    const REDIRECTED: u8 = 4;
    let mut offset = l4 + IPV6_LEN;
    let mut option: [u8; 2] = skb.load(offset)?;
    if option[0] != REDIRECTED {
        offset += option[1] as u32 * 8;
        option = skb.load(offset)?;
    }
    (option[0] == REDIRECTED).then_some(offset + 8)
}

/// Translates an ICMP error: the tuple of the packet that it quotes is `quoted` and becomes `tuple`
/// reversed; the error's own addresses become `src` and `dst`.
#[inline(always)]
pub fn rewrite<F: Wire>(
    skb: Skb,
    packet: &Packet<F::Addr>,
    quote: &Quote,
    quoted: &FlowKey<F::Addr>,
    tuple: &FlowKey<F::Addr>,
    (src, dst): (&F::Addr, &F::Addr),
) -> Result<(), WriteFailed> {
    let old = Ports::of(quoted).word();
    let new = Ports {
        src: tuple.dst_port,
        dst: tuple.src_port,
    }
    .word();
    let addresses =
        F::difference(quoted.src, tuple.dst) as u64 + F::difference(quoted.dst, tuple.src) as u64;
    let ports = !old as u64 + new as u64;

    // The growth of the quote's byte sum. A checksum that is updated compensates the change of what
    // it covers: the IPv4 header's covers addresses, the transport's covers addresses and ports.
    let mut sum = if F::ICMP == Protocol::ICMP {
        ports
    } else {
        addresses + ports
    };
    if let Some((offset, transport)) = transport_checksum(skb, quoted.protocol, quote.l4) {
        let more = fold_32(addresses + ports);
        let updated = match !checksum::fold(!transport as u64 + more as u64) {
            // In a UDP datagram, checksum 0 means that there is none; 0xffff has the same value.
            0 if quoted.protocol == Protocol::UDP => 0xffff,
            updated => updated,
        };
        skb.store(offset, &updated, false)?;
        sum += !more as u64;
    }
    skb.replace_checksum_sum(packet.l4 + ICMP_CHECKSUM, fold_32(sum))?;
    skb.store(quote.l4, &new, false)?;
    let ends = (tuple.dst, tuple.src);
    F::store_addresses(skb, quote.l3, quote.ip_checksum, quoted, ends, false)?;

    if F::ICMP == Protocol::ICMPV6 {
        // ICMPv6's checksum covers the outer addresses as well.
        let outer =
            F::difference(packet.key.src, *src) as u64 + F::difference(packet.key.dst, *dst) as u64;
        skb.replace_checksum_address(packet.l4 + ICMP_CHECKSUM, fold_32(outer), 0)?;
    }
    let ends = (*src, *dst);
    F::store_addresses(skb, packet.l3, packet.ip_checksum, &packet.key, ends, true)
}

/// Returns offset and value of the checksum in a quoted transport header; None if the quote is too
/// short, for UDP without a checksum, and for SCTP.
#[inline(always)]
fn transport_checksum(skb: Skb, protocol: Protocol, l4: u32) -> Option<(u32, u16)> {
    let offset = match protocol {
        Protocol::TCP => l4 + TCP_CHECKSUM,
        Protocol::UDP => l4 + UDP_CHECKSUM,
        _ => return None,
    };
    let value: u16 = skb.load(offset)?;
    (value != 0 || protocol != Protocol::UDP).then_some((offset, value))
}
