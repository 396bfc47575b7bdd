// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! `answerPing`: an ICMP echo request to a service's address is turned into the reply to it and
//! sent back out of the interface that it came in by.

use proxy_common::{Counter, Protocol};

use super::{
    UNTOUCHED, is_for_this_node,
    reject::{has_budget, swap_macs},
};
use crate::{
    count::Outcome,
    family::Family,
    maps::{flow, node, workspace},
    packet::{
        Packet, Skb,
        access::WriteFailed,
        headers::{ICMP_CHECKSUM, ICMP_LEN},
        parse::parse_plain,
    },
    service::lookup,
};

/// Answers a plain echo request to a service's address. The stack answers requests to the node's
/// own addresses.
#[inline(never)]
pub fn answer<F: Family>(skb: Skb, l3: u32) -> Outcome {
    let Some((packet, ..)) = flow::workspace::<F>(workspace::ATTACHED, l3) else {
        return UNTOUCHED;
    };
    if parse_plain::<F>(skb, packet).is_none() {
        return UNTOUCHED;
    }
    let (src, dst) = (packet.key.src, packet.key.dst);
    if !is_for_this_node(skb)
        || F::is_loopback(src)
        || node::is_node_address::<F>(&dst)
        || !lookup::answers_echo::<F>(dst)
        || node::is_drained()
    {
        return UNTOUCHED;
    }
    let len = match F::packet_end(skb, packet.l3) {
        Some(end) if end <= skb.len() => end.saturating_sub(packet.l4),
        _ => 0,
    };
    if len < ICMP_LEN {
        return UNTOUCHED;
    }
    if !has_budget() {
        return Outcome::drop(Counter::RejectedSilently);
    }
    if turn_around::<F>(skb, packet, len).is_err() {
        return Outcome::drop(Counter::DroppedRewrite);
    }
    Outcome::sent(skb.send_back(), Counter::EchoAnswered)
}

/// Makes a request with `len` bytes of ICMP into the reply to it. Identifier, sequence number and
/// data stay.
#[inline(always)]
fn turn_around<F: Family>(skb: Skb, packet: &Packet<F::Addr>, len: u32) -> Result<(), WriteFailed> {
    let [request, reply]: [u8; 2] = if F::ICMP == Protocol::ICMP {
        [8, 0]
    } else {
        [128, 129]
    };
    let [old, new] = [request, reply].map(|kind| u16::from_ne_bytes([kind, 0]));
    // The checksum's change makes up for that of the type; the sum over both addresses stays the
    // same.
    skb.replace_checksum_sum(packet.l4 + ICMP_CHECKSUM, !old as u32 + new as u32)?;
    skb.store(packet.l4, &reply, false)?;
    F::turn_around(skb, packet, len)?;
    swap_macs(skb, packet.l3)
}
