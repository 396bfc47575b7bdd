// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! The way past for all that is not ours: a packet's ports and destination, in registers, against the port
//! filter. What passes here costs no look-up in a hash.

use proxy_common::{Port, Settings, ports};

use crate::{
    family::Family,
    maps::PORTS,
    marks,
    packet::{Skb, headers::Ports},
    redirect, service,
};

/// The port filter's bits for a port.
#[inline(always)]
pub fn bits(port: Port) -> u64 {
    let port = port.host();
    PORTS
        .get(ports::word_of(port))
        .map_or(0, |word| ports::bits(*word, port))
}

/// Notes that some flow is about a port, before it is there.
#[inline(always)]
pub fn announce(port: Port, bit: u64) {
    if bits(port) & bit == 0 {
        portolan_announce(port.host() as u32, bit);
    }
}

/// Sets a bit of a port (host order). Always 0.
// VERIFIER: exported, so that it is verified once and not on every path that leads here.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn portolan_announce(port: u32, bit: u64) -> u32 {
    let port = port as u16;
    if let Some(word) = PORTS.get_ptr_mut(ports::word_of(port)) {
        let bit = ports::in_word(bit, port);
        // SAFETY: a live element; other programs and the agent change bits of it by atomic instructions, too.
        unsafe {
            core::arch::asm!("lock *(u64 *)({word} + 0) |= {bit}", word = in(reg) word, bit = in(reg) bit)
        };
    }
    0
}

/// What the filter says of a packet.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Passage {
    /// None of ours.
    Passes,
    /// Something may be about its ports.
    MayConcern,
    /// Its destination is a service's address, served or not.
    Service,
    /// It has options or is fragmented: look at it in full, then ask.
    Unknown,
}

/// Judges a packet at ingress.
#[inline(always)]
pub fn judge_ingress<F: Family>(skb: Skb, l3: u32) -> Passage {
    let Some(settings) = service::settings() else {
        return Passage::Passes;
    };
    match F::plain(skb, l3) {
        None => Passage::Unknown,
        Some((dst, ports)) => judge_ingress_by::<F>(settings, dst, ports),
    }
}

/// The same by its destination and ports.
#[inline(always)]
pub fn judge_ingress_by<F: Family>(settings: &Settings, dst: F::Addr, ports: Ports) -> Passage {
    // The address first: ports are asked about in calls, over which little can be kept.
    if F::services(settings).contains(dst) {
        return Passage::Service;
    }
    // A stale UDP backend's port is asked about for pods' sockets that are still connected to it.
    const ORIGINAL: u64 = ports::FRONTEND | ports::NODE_PORT | ports::STALE;
    let known = bits(ports.dst);
    // A reply to a client's own port passes: only its source is ours to change, at egress. Its way is ours as well
    // where packets are forwarded directly.
    let may_be_reply = redirect::is_on() || known & ports::MASQUERADE != 0;
    if known & ORIGINAL != 0 || may_be_reply && bits(ports.src) & ports::REPLY != 0 {
        Passage::MayConcern
    } else {
        Passage::Passes
    }
}

/// Judges a packet at egress; what is marked is looked at in full.
#[inline(always)]
pub fn judge_egress<F: Family>(skb: Skb, l3: u32) -> Passage {
    if skb.mark() & (marks::masquerade() | marks::drop()) != 0 {
        return Passage::Unknown;
    }
    match F::plain(skb, l3) {
        None => Passage::Unknown,
        Some((_, ports)) if may_concern_egress(ports) => Passage::MayConcern,
        Some(_) => Passage::Passes,
    }
}

/// Whether anything in the maps may be about a packet at egress that no mark is on.
#[inline(always)]
pub fn may_concern_egress(ports: Ports) -> bool {
    bits(ports.src) & (ports::REPLY | ports::NODE_PORT) != 0
}
