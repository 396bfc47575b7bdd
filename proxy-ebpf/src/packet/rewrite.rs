// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! Replaces a packet's addresses and ports and updates the checksums, for both directions and
//! families. Called through `Wire`.
//!
//! A failure can leave a packet half changed: callers drop it.

use aya_ebpf::bindings::BPF_F_MARK_MANGLED_0;
use proxy_common::{FlowKey, Port, Protocol, crc32c};

use super::{
    Packet, Shape, Skb,
    access::WriteFailed,
    headers::{Ports, SCTP_CHECKSUM, TCP_CHECKSUM, UDP_CHECKSUM},
    wire::{Wire, fold_32},
};

/// The new address and port of one end of a packet, and the new port of the packet's other end.
#[derive(Clone, Copy)]
pub struct NatTarget<A> {
    pub address: A,
    pub port: Port,
    pub other_port: Port,
}

/// Replaces the destination's address and port, and the source's port.
#[inline(always)]
pub fn destination<F: Wire>(
    skb: Skb,
    packet: &Packet<F::Addr>,
    target: &NatTarget<F::Addr>,
) -> Result<(), WriteFailed> {
    let ports = Ports {
        src: target.other_port,
        dst: target.port,
    };
    let difference = F::difference(packet.key.dst, target.address);
    let ends = (packet.key.src, target.address);
    rewrite::<F>(skb, packet, difference, ends, ports)
}

/// Replaces the source's address and port, and the destination's port.
#[inline(always)]
pub fn source<F: Wire>(
    skb: Skb,
    packet: &Packet<F::Addr>,
    target: &NatTarget<F::Addr>,
) -> Result<(), WriteFailed> {
    let ports = Ports {
        src: target.port,
        dst: target.other_port,
    };
    let difference = F::difference(packet.key.src, target.address);
    let ends = (target.address, packet.key.dst);
    rewrite::<F>(skb, packet, difference, ends, ports)
}

/// Gives a complete packet without options or extension headers the source and destination of
/// `ends`, and the hop limit `counted_down`, as [`Wire::fib_parameters`] returns it.
#[inline(always)]
pub fn both<F: Wire>(
    skb: Skb,
    packet: &Packet<F::Addr>,
    ends: &FlowKey<F::Addr>,
    counted_down: u32,
) -> Result<(), WriteFailed> {
    let ports = Ports::of(ends);
    let source = F::difference(packet.key.src, ends.src) as u64;
    let destination = F::difference(packet.key.dst, ends.dst) as u64;
    update_transport::<F>(skb, packet, fold_32(source + destination), ports)?;
    F::store_onward(skb, packet, (ends.src, ends.dst), ports, counted_down)
}

/// Updates the transport header's checksum, then writes addresses and ports. `difference` is the
/// sum that the change of the addresses adds.
#[inline(always)]
fn rewrite<F: Wire>(
    skb: Skb,
    packet: &Packet<F::Addr>,
    difference: u32,
    ends: (F::Addr, F::Addr),
    ports: Ports,
) -> Result<(), WriteFailed> {
    if packet.shape != Shape::LaterFragment {
        update_transport::<F>(skb, packet, difference, ports)?;
        if ports.word() != packet.ports().word() && packet.key.protocol != Protocol::SCTP {
            return F::store_ends(skb, packet, ends, ports);
        }
    }
    F::store_addresses(skb, packet.l3, packet.ip_checksum, &packet.key, ends, true)
}

/// Updates the transport header's checksum for new ports and for a change of addresses that adds
/// the sum `difference`. SCTP's ports are written as well.
#[inline(always)]
fn update_transport<F: Wire>(
    skb: Skb,
    packet: &Packet<F::Addr>,
    difference: u32,
    ports: Ports,
) -> Result<(), WriteFailed> {
    let (old, new) = (packet.ports().word(), ports.word());
    let (checksum, flags) = match packet.key.protocol {
        Protocol::TCP => (packet.l4 + TCP_CHECKSUM, 0),
        Protocol::UDP => (packet.l4 + UDP_CHECKSUM, BPF_F_MARK_MANGLED_0 as u64),
        _ if old != new => return sctp_ports::<F>(skb, packet, old, new),
        _ => return Ok(()),
    };
    skb.replace_checksum_address(checksum, difference, flags)?;
    if old != new {
        skb.replace_checksum_word(checksum, old, new, flags)?;
    }
    Ok(())
}

/// Writes SCTP's ports and updates its checksum, which covers the packet from the ports on, and no
/// address.
#[inline(always)]
fn sctp_ports<F: Wire>(
    skb: Skb,
    packet: &Packet<F::Addr>,
    old: u32,
    new: u32,
) -> Result<(), WriteFailed> {
    if packet.shape == Shape::FirstFragment {
        // SCTP's checksum covers the later fragments, whose length is not known yet.
        return Err(WriteFailed);
    }
    let checksum: u32 = skb.load(packet.l4 + SCTP_CHECKSUM).ok_or(WriteFailed)?;
    // Zero: the device will fill in the checksum.
    if checksum != 0 {
        let end = F::packet_end(skb, packet.l3).ok_or(WriteFailed)?;
        let distance = end.checked_sub(packet.l4 + 4).ok_or(WriteFailed)?;
        let replaced = portolan_replace_crc(u32::from_le(checksum), old, new, distance);
        skb.store(packet.l4 + SCTP_CHECKSUM, &replaced.to_le(), true)?;
    }
    skb.store(packet.l4, &new, true)
}

/// Returns the CRC32c of a packet after its ports have changed: see [`crc32c::replace_ports`].
// VERIFIER: exported, so that its loops are verified once and not at every call.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn portolan_replace_crc(checksum: u32, old: u32, new: u32, distance: u32) -> u32 {
    crc32c::replace_ports(checksum, old, new, distance as u16)
}
