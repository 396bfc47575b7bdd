// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! XDP at an uplink: packets of known flows between a client and a backend that are both on other
//! hosts. XDP translates both source and destination at once and sends the packet on. Called by the
//! entry point in `main`.
//!
//! Packets that XDP does not take go on to tc unchanged, and tc counts them. Packets that XDP takes
//! reach no tc program, and are counted here. Which packets XDP takes is decided in
//! `proxy_common::xdp`.

mod account;
mod next_hop;

use aya_ebpf::bindings::xdp_action::XDP_PASS;
use proxy_common::{
    Counter, FlowKind,
    flow::{
        ClientInterface, frontend_is_due,
        offload::{Consent, consent},
    },
    xdp::{self, Exit},
};

use crate::{
    count,
    family::{Family, Ipv4, Ipv6},
    maps::{
        flow, node, ports,
        traffic::{self, Direction},
        workspace,
    },
    packet::{
        Frame,
        headers::{ETHERNET_LEN, ETHERTYPE, ETHERTYPE_IPV4, ETHERTYPE_IPV6, Ports},
    },
};

/// Runs a frame through the XDP program; returns XDP's action.
#[inline(always)]
pub fn run(frame: Frame) -> u32 {
    match frame.read(ETHERTYPE) {
        Some(ETHERTYPE_IPV4) => of_family::<Ipv4>(frame),
        Some(ETHERTYPE_IPV6) => of_family::<Ipv6>(frame),
        // Tagged frames pass, too: the VLAN's interface handles them.
        _ => XDP_PASS,
    }
}

/// Handles a frame of one family. A subprogram for each family, with a stack of its own.
#[inline(never)]
fn of_family<F: Family>(frame: Frame) -> u32 {
    forward::<F>(frame).unwrap_or(XDP_PASS)
}

/// Sends a packet on and returns XDP's action; `None` leaves the packet to tc, unchanged.
#[inline(always)]
fn forward<F: Family>(frame: Frame) -> Option<u32> {
    let packet = F::read_frame(frame)?;
    let transport = frame.transport::<F>(packet.protocol)?;
    if !xdp::takes(packet.protocol, transport.signals)
        || !xdp::may_take(ports::bits(transport.ports.dst))
        || packet.hops <= 1
        || !frame.holds(ETHERNET_LEN + packet.length)
    {
        return None;
    }
    // VERIFIER: the stack is too short for keys and entries.
    let (parsed, clock, scratch) = flow::workspace::<F>(workspace::UPLINK, ETHERNET_LEN)?;
    let interface = node::client_interface(frame.interface());
    let key = &mut parsed.key;
    let Ports { src, dst } = transport.ports;
    key.assign(&packet.src, src, &packet.dst, dst, packet.protocol);
    key.set_interface(interface);
    let mut found = flow::find::<F>(key, &mut scratch.found);
    if found.is_none() && !interface.is_shared() {
        // A reply's key has no client's interface, even where the reply comes in by an interface
        // that counts as one client's own, as a veth does.
        key.set_interface(ClientInterface::SHARED);
        found = flow::find::<F>(key, &mut scratch.found)
            .filter(|found| found.entry.kind != FlowKind::ORIGINAL);
    }
    let found = found?;
    let entry = found.entry;
    let is_reply = entry.kind != FlowKind::ORIGINAL;
    let now = clock.now();
    // Once a second tc must check whether the frontend of a datagram's flow still belongs to its
    // service.
    let serves = || {
        F::serves(entry.backend, entry.service, entry.generation)
            && !frontend_is_due(entry.reuse, now)
    };
    let (protocol, signals) = (packet.protocol, transport.signals);
    let is_taken = if is_reply {
        xdp::takes_reply(entry)
    } else {
        xdp::takes_original(entry, protocol, signals, serves)
    };
    let ends = &mut scratch.reply;
    if !is_taken || !entry.both_ends_into(key, ends) {
        return None;
    }
    // XDP takes a packet only if the stack has let one of its direction pass lately, see
    // `proxy_common::flow::offload`. Otherwise tc sends the packet through the stack.
    let consent = consent(node::settings()?.flags, protocol, signals);
    if consent != Consent::ByRecord || !entry.offload.is_fresh(protocol, entry.last_seen, now) {
        return None;
    }
    let hop = next_hop::of::<F>(frame, &packet, ends, now, &mut scratch.route)?;
    let comes_alike = !is_reply || entry.came_by == frame.interface();
    if !comes_alike || !entry.offload.is_by(hop.egress) {
        return None;
    }
    if is_reply {
        // It leaves only by the interface that its client is behind.
        if entry.interface != node::client_interface(hop.egress) {
            return None;
        }
        let (reply_key, original_key) = (&mut scratch.key, &mut scratch.holder);
        let buffers = (&mut scratch.other, &mut scratch.entry);
        account::reply::<F>(
            key,
            &transport,
            &found,
            now,
            reply_key,
            original_key,
            buffers,
        )?;
    } else {
        found.see_settled(packet.protocol, transport.acknowledged, now);
    }
    // From here on XDP takes the packet.
    frame.rewrite::<F>(&packet, transport.ports, ends)?;
    frame.write_addresses(&hop.addresses)?;
    let (direction, counter) = if is_reply {
        (Direction::Out, Counter::ReplyByXdp)
    } else {
        (Direction::In, Counter::ForwardedByXdp)
    };
    let length = packet.length as u64;
    traffic::count_bytes::<F>(entry.backend, entry.generation, length, direction);
    count::one(counter as u32);
    Some(frame.send(hop.egress, hop.exit == Exit::Return as u32))
}
