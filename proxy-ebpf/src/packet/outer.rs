// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! The outer header of a carried packet (`proxy_common::carried`): reads it, puts it on, takes it
//! off; and what a packet must be so that it fits with it. Called by `tc::carry` and
//! `tc::take_off`.

use aya_ebpf::bindings::__sk_buff;
use proxy_common::{Addr, FlowKey, Protocol, carried::HEADER_LEN, check};

use super::{
    Packet, Skb,
    access::WriteFailed,
    headers::{OuterHeader, Ports, TCP_CHECKSUM, UdpHeader},
    wire::Wire,
};

/// What an outer header says.
#[derive(Clone, Copy)]
pub struct Outer<A> {
    pub src: A,
    pub dst: A,
    pub token: u64,
}

impl<A: Addr> Outer<A> {
    #[inline(always)]
    pub(super) fn new(src: A, dst: A, [low, high]: [u32; 2]) -> Self {
        let token = low as u64 | (high as u64) << 32;
        Self { src, dst, token }
    }
}

/// Returns the number of bytes that an outer header of the family has.
#[inline(always)]
pub const fn overhead<F: Wire>() -> u32 {
    F::HEADER_LEN + HEADER_LEN
}

/// Returns the packet's length from the IP header on.
#[inline(always)]
pub(super) fn length(skb: Skb, l3: u32) -> u32 {
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

/// How many of a SYN's options are looked at. Every stack puts the maximum segment size first.
const OPTIONS: u32 = 10;

/// Lowers the maximum segment size that a SYN with its TCP header at `l4` asks for to `largest`;
/// the returned 0 has no meaning.
// VERIFIER: exported, so that the loop is verified once.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn portolan_limit_segments(skb: *mut __sk_buff, l4: u32, largest: u32) -> u32 {
    const FIXED: u32 = 20;
    const END: u8 = 0;
    const NOTHING: u8 = 1;
    const SEGMENT_SIZE: u8 = 2;
    let skb = Skb::new(skb);
    let end = (skb.load::<u8>(l4 + 12).unwrap_or(0) >> 4) as u32 * 4;
    let mut offset = FIXED;
    for _ in 0..OPTIONS {
        if offset + 4 > end {
            return 0;
        }
        let Some(option) = skb.load::<u32>(l4 + offset) else {
            return 0;
        };
        let [kind, length, high, low] = option.to_ne_bytes();
        match kind {
            END => return 0,
            NOTHING => offset += 1,
            SEGMENT_SIZE => {
                let asked = u16::from_be_bytes([high, low]);
                if asked as u32 > largest {
                    _ = replace(skb, l4, offset + 2, asked, largest as u16);
                }
                return 0;
            }
            _ if length >= 2 => offset += length as u32,
            _ => return 0,
        }
    }
    0
}

/// Replaces the number at an offset in a TCP header.
#[inline(always)]
fn replace(skb: Skb, l4: u32, offset: u32, old: u16, new: u16) -> Result<(), WriteFailed> {
    // At an odd offset the halves of the sum's words lie the other way round.
    let word = |number: u16| match offset & 1 {
        0 => check::join(number.to_be(), 0),
        _ => check::join(number.to_be().swap_bytes(), 0),
    };
    skb.replace_checksum_word(l4 + TCP_CHECKSUM, word(old), word(new), 0)?;
    skb.store(l4 + offset, &new.to_be(), false)
}
