// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! While programs over new maps take over, they run behind those over the old maps. A packet that
//! these have translated must not be translated once more: it may look like one of another flow.

use crate::{
    count::Outcome,
    family::Family,
    maps::{flow, node, workspace},
    packet::{
        Ipv4, Ipv6, Skb,
        headers::{ETHERTYPE_IPV4, ETHERTYPE_IPV6},
        parse::{network_offset, parse_plain},
    },
    tc::direct,
};

/// The notes of both hooks for the programs behind: that the packet is served.
pub const INGRESS: u32 = 0x7074_0001;
pub const EGRESS: u32 = 0x7074_0002;

/// Returns the action for the kernel, and tells the programs behind these whether the packet is
/// served. What others have stored stays in packets that pass untouched.
#[inline(always)]
pub fn conclude(skb: Skb, outcome: Outcome, hook: u32) -> i32 {
    if !outcome.is_untouched() {
        skb.set_note(hook);
    } else if skb.has_note(hook) {
        skb.set_note(0);
    }
    outcome.conclude()
}

/// Whether programs over other maps have served the packet. If it begins a connection, flows that
/// begin here avoid its tuple, as that of a direct connection.
#[inline(always)]
pub fn is_served(skb: Skb, link_layer: bool, hook: u32) -> bool {
    if !skb.has_note(hook) || !node::is_behind() {
        return false;
    }
    match network_offset(skb, link_layer) {
        Some((ETHERTYPE_IPV4, l3)) => _ = note::<Ipv4>(skb, l3),
        Some((ETHERTYPE_IPV6, l3)) => _ = note::<Ipv6>(skb, l3),
        _ => {}
    }
    true
}

by_family! {
    /// Notes the tuple of a packet that begins a connection.
    fn note(skb, l3) = portolan_behind_v4 portolan_behind_v6 of note_tuple
}

#[inline(always)]
fn note_tuple<F: Family>(skb: Skb, l3: u32) -> u32 {
    if let Some((packet, _, scratch)) = flow::workspace::<F>(workspace::ATTACHED, l3)
        && parse_plain::<F>(skb, packet).is_some()
        && packet.signals.begins()
    {
        scratch.key.assign_reversed(&packet.key);
        direct::note(&scratch.key);
    }
    0
}
