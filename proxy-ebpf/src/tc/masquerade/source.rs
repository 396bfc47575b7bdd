// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! Finds the source address that a masqueraded flow leaves with. The rules of the selection are in
//! `proxy_common::masquerade`.

use proxy_common::{Addr, maps::interface};

use crate::{
    family::Family,
    maps::{MASQUERADE_SOURCES, node, workspace::Scratch},
    packet::{
        Packet, Skb,
        fib::{self, FibResult},
    },
};

/// Writes the source address into `scratch.key`, as the destination of the backend's answers: an
/// address of the interface that the packet leaves by, else the node's InternalIP. `false` if no
/// address is known.
#[inline(never)]
pub fn select<F: Family>(
    skb: Skb,
    packet: &Packet<F::Addr>,
    scratch: &mut Scratch<F::Addr>,
) -> bool {
    let word = node::interface_word(skb.interface());
    let outgoing = node::through(word, skb.interface());
    let index = interface::bits(word) & interface::SOURCE;
    let Some(sources) = MASQUERADE_SOURCES.get(index) else {
        return false;
    };
    let sources = F::masquerade_sources(sources);
    let address = &mut scratch.key.dst;
    address.assign(&packet.key.dst);
    // KUBE: as MASQUERADE, by the next hop for IPv4, by the destination for IPv6.
    if F::VERSION == 4 && sources.has_several() {
        // In a dry run the packet has come in by no interface.
        let incoming = match skb.incoming() {
            0 => outgoing,
            index => node::through(node::interface_word(index), index),
        };
        fib::clear(&mut scratch.route);
        scratch.route.ifindex = incoming;
        if F::fib_parameters(skb, packet.l3, &mut scratch.route).is_some() {
            let family = scratch.route.family;
            let result = fib::look_up(skb, &mut scratch.route);
            // A gateway of the other family has no IPv4 address.
            if !matches!(result, FibResult::NotForwarded)
                && scratch.route.ifindex == outgoing
                && scratch.route.family == family
            {
                address.assign(&F::fib_destination(&scratch.route));
            }
        }
    }
    let mut selected = F::select_source(sources, address);
    if selected == F::Addr::UNSPECIFIED {
        let Some(settings) = node::settings() else {
            return false;
        };
        selected = F::internal_address(settings);
    }
    address.assign(&selected);
    selected != F::Addr::UNSPECIFIED
}
