// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! The outer header of a carried packet (`proxy_common::carried`), and the lengths that decide what
//! fits. Called by `tc::carry` and `tc::restore`.

use proxy_common::{Addr, FlowKey, Port, Protocol, carried::HEADER_LEN};

use super::{
    Packet, Skb,
    access::WriteFailed,
    headers::{OuterHeader, Ports, UdpHeader},
    wire::Wire,
};

/// What an outer header says.
#[derive(Clone, Copy)]
pub struct Outer<A> {
    pub src: A,
    pub dst: A,
    /// The source port, which is the flow's masquerade port.
    pub port: Port,
    pub token: u64,
}

impl<A: Addr> Outer<A> {
    #[inline(always)]
    pub(super) fn new<H>(src: A, dst: A, header: &OuterHeader<H>) -> Self {
        let [low, high] = header.token;
        Self {
            src,
            dst,
            port: header.udp.ports.src,
            token: low as u64 | (high as u64) << 32,
        }
    }
}

/// Returns the number of bytes that an outer header of the family has.
#[inline(always)]
pub const fn overhead<F: Wire>() -> u32 {
    F::HEADER_LEN + HEADER_LEN
}

/// Returns the packet's length from the IP header on.
#[inline(always)]
pub fn length(skb: Skb, l3: u32) -> u32 {
    skb.len() - l3
}

/// Returns an outer header; `length` is that of the UDP datagram.
#[inline(always)]
pub(super) fn header<H, A>(ip: H, ends: &FlowKey<A>, length: u32, token: u64) -> OuterHeader<H> {
    let udp = UdpHeader {
        ports: Ports::of(ends),
        length: (length as u16).to_be(),
        checksum: 0,
    };
    let token = [token as u32, (token >> 32) as u32];
    OuterHeader { ip, udp, token }
}

/// Puts an outer header with the ends of `ends` in front of the IP header at `l3`.
#[inline(always)]
pub fn put_on<F: Wire>(
    skb: Skb,
    l3: u32,
    ends: &FlowKey<F::Addr>,
    token: u64,
) -> Result<(), WriteFailed> {
    let class = F::class(skb, l3).ok_or(WriteFailed)?;
    skb.insert_outer(overhead::<F>(), HEADER_LEN - 8, F::VERSION == 4)?;
    F::store_outer(skb, l3, ends, class, token)
}

/// Returns the length of the packet, or of the longest of its segments, from its IP header on.
#[inline(always)]
pub fn segment_length<A: Addr>(skb: Skb, packet: &Packet<A>) -> u32 {
    const UDP_LEN: u32 = 8;
    let payload = skb.segment_payload();
    let headers = packet.l4 - packet.l3;
    if payload == 0 {
        return length(skb, packet.l3);
    }
    if packet.key.protocol != Protocol::TCP {
        return headers + UDP_LEN + payload;
    }
    const OFFSET: u32 = 12;
    let words = skb.load::<u8>(packet.l4 + OFFSET).unwrap_or(0) >> 4;
    headers + words as u32 * 4 + payload
}
