// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! Answers to rejected packets: the packet is turned into a TCP reset or an ICMP port unreachable
//! and sent back out of the interface that it came in by.

use proxy_common::{Counter, Port, Protocol, ServiceId, checksum, flow::Signals};

use super::{is_for_this_node, step::Step};
use crate::{
    count::Outcome,
    family::Family,
    helpers,
    maps::{REJECT_BUDGET, flow, node, workspace},
    packet::{
        Packet, Shape, Skb,
        access::WriteFailed,
        headers::{
            ETHERNET_LEN, ICMP_LEN, Ports, TCP_CHECKSUM, TcpHeader, TcpOrSctpStart, UDP_CHECKSUM,
        },
        parse::parse_network,
        wire::fold_32,
    },
    service::lookup,
};

/// Number of answers per second and CPU, and the largest burst: the kernel's own limit for ICMP
/// (net.ipv4.icmp_msgs_per_sec, 1000).
const RATE: u64 = 1_000;
const BURST: u64 = 1_000;
const INTERVAL: u64 = 1_000_000_000 / RATE;

/// Refuses a packet to a cluster IP whose protocol no service has, or an echo request that is not
/// answered. KUBE: kube-proxy rejects whatever goes to a cluster IP and to none of its ports, and
/// drops what goes to an unallocated one.
#[inline(never)]
pub fn other_protocol<F: Family>(skb: Skb, l3: u32) -> Step {
    let Some((packet, _, scratch)) = flow::workspace::<F>(workspace::ATTACHED, l3) else {
        return Step::untouched();
    };
    scratch.service = ServiceId::NONE;
    skb.pull_headers();
    if parse_network::<F>(skb, packet).is_none() {
        return Step::untouched();
    }
    let (src, dst) = (packet.key.src, packet.key.dst);
    if !is_for_this_node(skb)
        || F::is_loopback(src)
        || node::is_node_address::<F>(&dst)
        || node::is_drained()
    {
        return Step::untouched();
    }
    let Some(guard) = lookup::record_of::<F>(dst, Port::ANY, Protocol::ANY) else {
        return match node::settings() {
            Some(settings) if lookup::is_unallocated::<F>(dst, settings) => {
                Outcome::drop(Counter::DroppedUnallocated).into()
            }
            _ => Step::untouched(),
        };
    };
    scratch.service = guard.service;
    if skb.len() < packet.l4 + QUOTED {
        return Outcome::drop(Counter::RejectedSilently).into();
    }
    Step::reject(false, Counter::RejectedUnserved)
}

/// Turns the packet in the workspace into the answer to it, see
/// [`Next::Reject`](super::step::Next::Reject).
#[inline(never)]
pub fn reject<F: Family>(skb: Skb, reset: bool, counter: u32) -> Outcome {
    let Some((packet, ..)) = flow::filled_workspace::<F>() else {
        return Outcome::drop(Counter::RejectedSilently);
    };
    // An answer to a fragment would carry the fragment header. And the kernel inserts no bytes
    // behind a VLAN tag.
    let is_tagged = packet.l3 > ETHERNET_LEN;
    if packet.shape != Shape::Whole || is_tagged && !reset || !has_budget() {
        return Outcome::drop(Counter::RejectedSilently);
    }
    let answered = if reset {
        self::reset::<F>(skb, packet)
    } else {
        unreachable::<F>(skb, packet, 0)
    };
    if answered.is_err() || swap_macs(skb, packet.l3).is_err() {
        return Outcome::drop(Counter::DroppedRewrite);
    }
    Outcome::sent(skb.send_back(), Counter::Untouched).counted_as(counter)
}

/// Turns the packet in the workspace, which is leaving, into the error that it is too large, and
/// has the interface receive it, as if the error came from its destination. Ingress, the stack and
/// egress treat it like any error about the packet's flow.
#[inline(never)]
pub fn too_large<F: Family>(skb: Skb, mtu: u32) -> Outcome {
    let outcome = Outcome::drop(Counter::TooLarge);
    let Some((packet, ..)) = flow::filled_workspace::<F>() else {
        return outcome;
    };
    let has_ports = matches!(packet.shape, Shape::Whole | Shape::FirstFragment);
    if !has_ports
        || !has_budget()
        || unreachable::<F>(skb, packet, mtu).is_err()
        || swap_macs(skb, packet.l3).is_err()
    {
        return outcome;
    }
    Outcome::sent(skb.receive(), Counter::TooLarge)
}

/// Takes one of this CPU's tokens, for one answer; `false` if no token is left. Tokens are refilled
/// with time.
#[inline(always)]
pub(super) fn has_budget() -> bool {
    let Some(budget) = REJECT_BUDGET.get_ptr_mut(0) else {
        return false;
    };
    // SAFETY: this CPU's own element.
    let [tokens, filled] = unsafe { &mut *budget };
    let now = helpers::now();
    let earned = now.saturating_sub(*filled) / INTERVAL;
    if earned > 0 {
        let total = *tokens + earned;
        *tokens = if total > BURST { BURST } else { total };
        *filled = now;
    }
    if *tokens == 0 {
        return false;
    }
    *tokens -= 1;
    true
}

#[inline(always)]
pub(super) fn swap_macs(skb: Skb, l3: u32) -> Result<(), WriteFailed> {
    if l3 < ETHERNET_LEN {
        return Ok(());
    }
    let macs: [[u16; 3]; 2] = skb.load(0).ok_or(WriteFailed)?;
    skb.store(0, &[macs[1], macs[0]], false)
}

const TCP_LEN: u32 = 20;

/// Turns the packet into a reset that the sender of this segment accepts (RFC 9293, 3.10.7.1). The
/// TCP header keeps its offset, because the device may have been asked to fill in the checksum
/// there.
#[inline(always)]
fn reset<F: Family>(skb: Skb, packet: &Packet<F::Addr>) -> Result<(), WriteFailed> {
    let tcp: TcpOrSctpStart = skb.load(packet.l4).ok_or(WriteFailed)?;
    let end = F::packet_end(skb, packet.l3).ok_or(WriteFailed)?;
    let header_len = (tcp.offset_or_chunk >> 4) as u32 * 4;
    let payload = end.saturating_sub(packet.l4 + header_len);
    let flags = Signals(tcp.flags);
    let length = payload + flags.has(Signals::SYN) as u32 + flags.has(Signals::FIN) as u32;
    let (sequence, acknowledgement, flags) = if flags.has(Signals::ACK) {
        (tcp.acknowledgement_or_checksum, 0, Signals::RST)
    } else {
        let next = u32::from_be(tcp.sequence_or_tag).wrapping_add(length);
        (0, next.to_be(), Signals::RST | Signals::ACK)
    };
    let filled_by_device = is_partial(skb, packet.l4 + TCP_CHECKSUM)?;
    skb.set_len(packet.l4 + TCP_LEN)?;
    F::turn_around(skb, packet, TCP_LEN)?;
    let mut answer = TcpHeader {
        ports: Ports {
            src: packet.key.dst_port,
            dst: packet.key.src_port,
        },
        sequence,
        acknowledgement,
        offset: (TCP_LEN as u8 / 4) << 4,
        flags,
        window: 0,
        checksum: 0,
        urgent: 0,
    };
    let pseudo = F::pseudo_sum(packet.key.src, packet.key.dst, TCP_LEN, Protocol::TCP);
    answer.checksum = if filled_by_device {
        checksum::fold(pseudo)
    } else {
        let offset_flags = u16::from_ne_bytes([answer.offset, answer.flags]);
        let sum = pseudo
            + answer.ports.word() as u64
            + sequence as u64
            + acknowledgement as u64
            + offset_flags as u64;
        !checksum::fold(sum)
    };
    skb.store(packet.l4, &answer, true)
}

/// Whether the device fills in the checksum at `offset`. In that case the kernel's helper does not
/// change the checksum for a change of covered bytes, which is tried here.
#[inline(always)]
fn is_partial(skb: Skb, offset: u32) -> Result<bool, WriteFailed> {
    let before: u16 = skb.load(offset).ok_or(WriteFailed)?;
    skb.replace_checksum_word(offset, 0, 1, 0)?;
    let after: u16 = skb.load(offset).ok_or(WriteFailed)?;
    if before != after {
        skb.store(offset, &before, false)?;
    }
    Ok(before == after)
}

/// Number of quoted bytes of the transport header: RFC 792's eight, enough for any client to
/// recognise its own packet.
const QUOTED: u32 = 8;
/// Maximum number of 32-bit words of IP header and [`QUOTED`] that are summed up; longer headers
/// are cut.
const MAX_WORDS: u32 = 32;

/// Turns the packet into a port unreachable error (RFC 792, RFC 4443); if `mtu` is not 0, into one
/// that says that this size would fit.
#[inline(always)]
pub(super) fn unreachable<F: Family>(
    skb: Skb,
    packet: &Packet<F::Addr>,
    mtu: u32,
) -> Result<(), WriteFailed> {
    let (protocol, l4) = (packet.key.protocol, packet.l4);
    let mut quoted = l4 - packet.l3 + QUOTED;
    if protocol == Protocol::UDP && is_partial(skb, l4 + UDP_CHECKSUM)? {
        settle_checksum(skb, l4)?;
    } else if protocol == Protocol::TCP && mtu != 0 {
        // A device that fills in the checksum needs the field.
        quoted += TCP_LEN - QUOTED;
        if is_partial(skb, l4 + TCP_CHECKSUM)? {
            settle_tcp_checksum(skb, l4)?;
        }
    }
    if quoted > MAX_WORDS * 4 {
        quoted = MAX_WORDS * 4;
    }
    let mut sum = 0_u64;
    for n in 0..MAX_WORDS {
        if n * 4 >= quoted {
            break;
        }
        sum += skb.load::<u32>(packet.l3 + n * 4).ok_or(WriteFailed)? as u64;
    }
    skb.set_len(packet.l3 + quoted)?;
    skb.insert_before_ip(F::HEADER_LEN + ICMP_LEN)?;
    F::store_unreachable(skb, packet, quoted, fold_32(sum), mtu)
}

/// A device may fill in the quoted UDP checksum later. This sets the checksum field to the value
/// that filling in leaves unchanged: with all else summing to s, filling in turns f into -(s + f),
/// so f = -s / 2. The answer's own checksum is right before and after.
#[inline(always)]
fn settle_checksum(skb: Skb, l4: u32) -> Result<(), WriteFailed> {
    let header: [u16; 3] = skb.load(l4).ok_or(WriteFailed)?;
    let sum = header[0] as u64 + header[1] as u64 + header[2] as u64;
    skb.store(l4 + UDP_CHECKSUM, &settled(sum), false)
}

/// Like [`settle_checksum`], for a TCP header without options.
#[inline(always)]
fn settle_tcp_checksum(skb: Skb, l4: u32) -> Result<(), WriteFailed> {
    let header: [u32; TCP_LEN as usize / 4] = skb.load(l4).ok_or(WriteFailed)?;
    let [a, b, c, d, last] = header.map(u64::from);
    // The checksum is the first half of the last word.
    let sum = a + b + c + d + (last >> 16 << 16);
    skb.store(l4 + TCP_CHECKSUM, &settled(sum), false)
}

#[inline(always)]
fn settled(sum: u64) -> u16 {
    let negated = !checksum::fold(sum) as u32;
    let half = if negated & 1 == 0 {
        negated / 2
    } else {
        (negated + 0xffff) / 2
    };
    half as u16
}
