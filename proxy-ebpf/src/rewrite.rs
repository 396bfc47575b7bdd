// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! Address and port translation with checksums, both directions, both families.
//!
//! A failure can leave a packet half changed: callers drop it.

use aya_ebpf::bindings::BPF_F_MARK_MANGLED_0;
use proxy_common::{Port, Protocol, crc32c};

use crate::{
    family::Family,
    packet::{
        Packet, Shape, Skb,
        access::WriteFailed,
        headers::{Ports, SCTP_CHECKSUM, TCP_CHECKSUM, UDP_CHECKSUM},
    },
};

/// The far end that a packet's destination (or source) becomes.
#[derive(Clone, Copy)]
pub struct To<A> {
    pub address: A,
    pub port: Port,
    /// What the port at the other end becomes.
    pub other_port: Port,
}

/// Sends a packet to another destination, and from another port of its source.
#[inline(always)]
pub fn destination<F: Family>(
    skb: Skb,
    packet: &Packet<F::Addr>,
    to: &To<F::Addr>,
) -> Result<(), WriteFailed> {
    let ports = Ports {
        src: to.other_port,
        dst: to.port,
    };
    let difference = F::difference(packet.key.dst, to.address);
    let ends = (packet.key.src, to.address);
    rewrite::<F>(skb, packet, difference, ends, ports)
}

/// Makes a packet come from another source, and to another port of its destination.
#[inline(always)]
pub fn source<F: Family>(
    skb: Skb,
    packet: &Packet<F::Addr>,
    to: &To<F::Addr>,
) -> Result<(), WriteFailed> {
    let ports = Ports {
        src: to.port,
        dst: to.other_port,
    };
    let difference = F::difference(packet.key.src, to.address);
    let ends = (to.address, packet.key.dst);
    rewrite::<F>(skb, packet, difference, ends, ports)
}

/// The transport header's checksum for addresses and ports, then both.
#[inline(always)]
fn rewrite<F: Family>(
    skb: Skb,
    packet: &Packet<F::Addr>,
    difference: u32,
    (src, dst): (F::Addr, F::Addr),
    ports: Ports,
) -> Result<(), WriteFailed> {
    if packet.shape == Shape::LaterFragment {
        return F::store_addresses(skb, packet, src, dst);
    }
    let old = packet.ports().word();
    let new = ports.word();
    let (checksum, flags) = match packet.key.protocol {
        Protocol::TCP => (packet.l4 + TCP_CHECKSUM, 0),
        Protocol::UDP => (packet.l4 + UDP_CHECKSUM, BPF_F_MARK_MANGLED_0 as u64),
        _ => {
            if old != new {
                sctp_ports::<F>(skb, packet, old, new)?;
            }
            return F::store_addresses(skb, packet, src, dst);
        }
    };
    skb.replace_checksum_address(checksum, difference, flags)?;
    if old == new {
        return F::store_addresses(skb, packet, src, dst);
    }
    skb.replace_checksum_word(checksum, old, new, flags)?;
    F::store_ends(skb, packet, (src, dst), ports)
}

/// SCTP's checksum covers no addresses, but all of the packet behind the ports.
#[inline(always)]
fn sctp_ports<F: Family>(
    skb: Skb,
    packet: &Packet<F::Addr>,
    old: u32,
    new: u32,
) -> Result<(), WriteFailed> {
    if packet.shape == Shape::FirstFragment {
        // Its checksum covers bytes that are not here, at a distance nobody knows yet.
        return Err(WriteFailed);
    }
    let checksum: u32 = skb.load(packet.l4 + SCTP_CHECKSUM).ok_or(WriteFailed)?;
    // Zero: the device will fill it in.
    if checksum != 0 {
        let end = F::packet_end(skb, packet.l3).ok_or(WriteFailed)?;
        let distance = end.checked_sub(packet.l4 + 4).ok_or(WriteFailed)?;
        let replaced = portolan_replace_crc(u32::from_le(checksum), old, new, distance);
        skb.store(packet.l4 + SCTP_CHECKSUM, &replaced.to_le(), true)?;
    }
    skb.store(packet.l4, &new, true)
}

/// CRC32c of the rewritten packet: see [`crc32c::replace_ports`].
// VERIFIER: exported, so that its loops are verified once and not at every call.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn portolan_replace_crc(checksum: u32, old: u32, new: u32, distance: u32) -> u32 {
    crc32c::replace_ports(checksum, old, new, distance as u16)
}
