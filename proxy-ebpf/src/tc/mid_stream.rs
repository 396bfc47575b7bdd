// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! A packet that begins no flow and belongs to none, to an address that may be a service's. Called by `ingress`.

use proxy_common::{
    Counter, FrontendKind, Protocol, Record, ServiceFlags, ServiceId, Settings, Verdict,
    flow::Signals, maps::interface, ports as port_bits,
};

use super::is_for_this_node;
use crate::{
    count::Outcome,
    family::Family,
    globals,
    maps::{node, ports},
    packet::{Packet, Shape, Skb},
    service::{lookup, policy},
    socket,
};

/// Answers a TCP segment to a service with a reset. KUBE: conntrack would pick it up, and some backend would answer with RST;
/// here the answer comes from the node. What policy drops gets no answer. All other packets pass.
///
/// With `selection: maglev`, another node may have forwarded the connection until now, and chose the backend that this one chooses,
/// too: the flow is picked up. Asks the caller to do it, by [`Outcome::UNKNOWN`]. A masqueraded connection had that node's address;
/// no backend knows it by this one's.
#[inline(never)]
pub fn mid_stream<F: Family>(
    skb: Skb,
    packet: &Packet<F::Addr>,
    service: &mut ServiceId,
) -> Outcome {
    // Whoever serves beside a shadow knows it.
    if globals::is_shadow() {
        return Outcome::pass(Counter::Untouched);
    }
    let Some(settings) = node::settings() else {
        return Outcome::pass(Counter::Untouched);
    };
    let key = &packet.key;
    if key.protocol != Protocol::TCP
        || packet.shape == Shape::LaterFragment
        || packet.signals.has(Signals::RST)
        || !settings.has(Settings::RESET_UNKNOWN)
        || !is_for_this_node(skb, interface::BRIDGE_PORT)
        || F::is_loopback(key.dst)
        || F::is_loopback(key.src)
    {
        return Outcome::pass(Counter::Untouched);
    }
    let record = match lookup::record_of::<F>(key.dst, key.dst_port, key.protocol) {
        Some(record) if !is_others::<F>(skb, packet, record) => record,
        // One to a cluster IP that nobody has may be another proxy's.
        _ => return Outcome::pass(Counter::Untouched),
    };
    *service = record.service;
    match policy::verdict_on_packet::<F>(skb, record, key.src, settings) {
        Verdict::Reject => Outcome::reject(true, policy::rejection_of(record)),
        Verdict::DropNoLocalEndpoint => Outcome::drop(Counter::DroppedNoLocalEndpoint),
        Verdict::DropSource => Outcome::drop(Counter::DroppedSource),
        Verdict::Forward {
            masquerade: false, ..
        } if record.flags.has(ServiceFlags::MAGLEV) => Outcome::UNKNOWN,
        Verdict::Forward { .. } => Outcome::reject(true, Counter::RejectedUnknownFlow),
    }
}

/// Whether somebody else may know the connection of a segment to this frontend: the node's own stack, for a node port and for
/// an external IP that is an address of the node (it also answers what it does not know); another node that has this external IP, and
/// masquerades a connection to a backend from the frontend's port, whose answer this is; or the socket that has sent it.
#[inline(always)]
fn is_others<F: Family>(skb: Skb, packet: &Packet<F::Addr>, record: &Record<F::Addr>) -> bool {
    let key = &packet.key;
    match record.flags.kind() {
        FrontendKind::NodePort => true,
        FrontendKind::ExternalIp | FrontendKind::LoadBalancer => {
            packet.signals.answers()
                || ports::bits(key.src_port) & port_bits::BACKEND != 0
                || node::is_node_address::<F>(&key.dst)
                || socket::is_translated::<F>(skb, key)
        }
        _ => socket::is_translated::<F>(skb, key),
    }
}
