// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! Handles a packet in the middle of a connection that belongs to no known flow, to an address that
//! may be a service's. Called by `begin`.

use proxy_common::{
    Counter, FrontendKind, Protocol, Record, ServiceFlags, ServiceId, Settings, Verdict,
    flow::Signals, ports as port_bits,
};

use super::{is_for_this_node, step::Step};
use crate::{
    count::Outcome,
    family::Family,
    maps::{node, ports},
    packet::{Packet, Shape, Skb},
    service::{lookup, policy},
    socket,
};

/// Answers a TCP segment to a service with a reset. KUBE: conntrack would pick the connection up,
/// and some backend would answer with RST; here the answer comes from the node. A segment that the
/// policy drops gets no answer. All other packets pass. `service` gets the id of the service port.
///
/// With `selection: maglev`, another node may have forwarded the connection until now. That node
/// chose the same backend as this node chooses, so the flow is picked up: [`Step::BEGIN`] asks the
/// caller to do that. If the connection was masqueraded, it had the other node's address, so no
/// backend knows it by this node's address.
#[inline(never)]
pub fn mid_stream<F: Family>(skb: Skb, packet: &Packet<F::Addr>, service: &mut ServiceId) -> Step {
    let Some(settings) = node::settings() else {
        return Step::untouched();
    };
    let key = &packet.key;
    if key.protocol != Protocol::TCP
        || packet.shape == Shape::LaterFragment
        || packet.signals.has(Signals::RST)
        || !settings.has(Settings::RESET_UNKNOWN)
        || !is_for_this_node(skb)
        || F::is_loopback(key.dst)
        || F::is_loopback(key.src)
    {
        return Step::untouched();
    }
    let record = match lookup::record_of::<F>(key.dst, key.dst_port, key.protocol) {
        Some(record) if !is_others::<F>(skb, packet, record) => record,
        // A packet to a cluster IP that no service has may belong to another proxy.
        _ => return Step::untouched(),
    };
    *service = record.service;
    match policy::verdict_on_packet::<F>(skb, record, key.src, settings) {
        Verdict::Reject => Step::reject(true, policy::rejection_of(record)),
        Verdict::DropNoLocalEndpoint => Outcome::drop(Counter::DroppedNoLocalEndpoint).into(),
        Verdict::DropSource => Outcome::drop(Counter::DroppedSource).into(),
        Verdict::Forward {
            masquerade: false, ..
        } if record.flags.has(ServiceFlags::MAGLEV) => Step::BEGIN,
        Verdict::Forward { .. } => Step::reject(true, Counter::RejectedUnknownFlow),
    }
}

/// Whether another host or program may know the connection of a segment to this frontend. That may
/// be the node's own stack, for a node port and for an external IP that is an address of the node
/// (the stack also answers segments of unknown connections). It may be another node that has this
/// external IP and masquerades a connection to a backend from the frontend's port; the segment is
/// then the backend's answer. Or it may be the socket that has sent the segment.
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
