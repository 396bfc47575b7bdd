// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! Whether a packet of a flow may leave past the stack: only after the stack has let a packet of
//! the same direction pass. Ingress tags a packet if there is no fresh record for its direction
//! ([`path`]). Egress sees what the stack makes of the packet, and records in the flow's entry that
//! it came out unchanged, and by which interface ([`record`]). See `proxy_common::flow::offload`.

pub use proxy_common::flow::offload::Path;
use proxy_common::{
    Addr, FlowEntry, FlowKind, LocalPod,
    flow::{
        ClientInterface, Offload,
        offload::{self, consent},
    },
    maps::interface,
};

use super::between_pods;
use crate::{
    family::Family,
    maps::{
        flow::{self, Element},
        node,
        workspace::Scratch,
    },
    packet::{Packet, Skb, access::Tag, headers::ETHERNET_LEN, parse},
};

/// Returns the path of a packet. `entry` is the packet's flow entry, as it was before this packet.
#[inline(always)]
pub fn path<A: Addr>(packet: &Packet<A>, entry: &FlowEntry<A>, now: u64) -> Path {
    let Some(settings) = node::settings() else {
        return Path::Stack;
    };
    let protocol = packet.key.protocol;
    let consent = consent(settings.flags, protocol, packet.signals);
    offload::path(consent, protocol, entry, now)
}

/// Whether a reply comes in as the stack has let one pass: by the same interface or, to the stack,
/// the same bridge, and not with the address of a pod behind another interface. Only such a reply
/// may leave past the stack, or change its flow before the stack has judged it.
#[inline(always)]
pub fn is_bound<F: Family>(
    skb: Skb,
    src: &F::Addr,
    entry: &FlowEntry<F::Addr>,
    pod: &mut LocalPod,
) -> bool {
    let own = skb.interface();
    let comes_alike =
        || entry.came_by == own || entry.came_by == interface::bridge(node::interface_word(own));
    entry.offload.interface() != 0
        && comes_alike()
        && !(node::local_pod::<F>(src, pod) && pod.interface != own)
}

/// Returns the tag of a packet that takes [`Path::Recorded`] and was found by this entry.
#[inline(always)]
pub fn tag<A: Addr>(entry: &FlowEntry<A>) -> Tag {
    if entry.kind == FlowKind::ORIGINAL {
        Tag::ORIGINAL
    } else {
        Tag::REPLY
    }
}

/// Egress: records that a packet which ingress has tagged leaves the stack, if it still is as
/// ingress sent it.
#[inline(always)]
pub fn record<F: Family>(skb: Skb, link_layer: bool, tag: Tag) {
    // At a VLAN, a bond or a tunnel, the packet passes egress of the lower device as well.
    skb.set_tag(Tag::NONE);
    if !link_layer {
        return;
    }
    match tag {
        Tag::ORIGINAL => _ = record_flow::<F>(skb, 0),
        Tag::REPLY => _ = record_flow::<F>(skb, 1),
        Tag::BETWEEN_PODS => between_pods::record::<F>(skb),
        _ => {}
    }
}

by_family! {
    /// Records a packet of a flow; it is a reply if `is_reply` is not 0.
    fn record_flow(skb, is_reply) = portolan_record_v4 portolan_record_v6 of record_in_entry
}

#[inline(always)]
fn record_in_entry<F: Family>(skb: Skb, is_reply: u32) -> u32 {
    let Some((_, clock, scratch)) = flow::filled_workspace::<F>() else {
        return 0;
    };
    if let Some(element) = element_of::<F>(skb, is_reply != 0, scratch) {
        if is_reply != 0 {
            element.set_came_by(skb.incoming());
        }
        element.set_offload(Offload::new(skb.interface(), clock.now()));
    }
    0
}

/// Finds the entry by which ingress found the packet. None if rules have changed an address or a
/// port of the packet.
#[inline(always)]
fn element_of<F: Family>(
    skb: Skb,
    is_reply: bool,
    scratch: &mut Scratch<F::Addr>,
) -> Option<Element<F::Addr>> {
    let (dst, ports) = F::plain(skb, ETHERNET_LEN)?;
    let (protocol, _) = parse::plain_start::<F>(skb, ETHERNET_LEN)?;
    let src = skb.read(ETHERNET_LEN + F::SOURCE)?;
    let Scratch {
        found,
        other,
        key,
        holder,
        ..
    } = scratch;
    if is_reply {
        key.assign(&src, ports.src, &dst, ports.dst, protocol);
    } else {
        key.assign(&dst, ports.dst, &src, ports.src, protocol);
    }
    let reply = flow::find::<F>(key, found)?;
    if reply.entry.kind != FlowKind::REPLY || reply.entry.interface == ClientInterface::NODE {
        return None;
    }
    let kind = if !is_reply {
        reply.entry.original_key_into(key, holder);
        FlowKind::ORIGINAL
    } else if reply.entry.is_masqueraded() {
        reply.entry.masqueraded_key_into(key, holder);
        FlowKind::MASQUERADED_REPLY
    } else {
        return Some(reply.element);
    };
    let found = flow::find::<F>(holder, other)?;
    (found.entry.kind == kind).then_some(found.element)
}
