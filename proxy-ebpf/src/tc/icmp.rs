// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! ICMP errors about flows. Both the error's own addresses and the packet that it quotes are
//! translated, so that path MTU discovery works through a service's address. Called by `ingress`
//! and `egress`.
//!
//! An error quotes a packet and travels in the other direction. So it is treated like a packet
//! whose tuple is the quoted tuple reversed: a new source of that packet becomes the new
//! destination of the quoted packet.

use proxy_common::{Counter, FlowKind, flow::ClientInterface};

use super::step::Step;
use crate::{
    count::Outcome,
    family::Family,
    globals,
    maps::{
        flow::{self, Found},
        node,
        workspace::Scratch,
    },
    packet::{Packet, Skb, quote},
};

/// Handles an ICMP packet at ingress.
#[inline(never)]
pub fn ingress<F: Family>(
    skb: Skb,
    packet: &Packet<F::Addr>,
    scratch: &mut Scratch<F::Addr>,
) -> Step {
    let Scratch {
        found,
        key: quoted,
        holder: tuple,
        ..
    } = scratch;
    let Some(quote) = quote::read::<F>(skb, packet, quoted) else {
        return Step::untouched();
    };
    tuple.assign_reversed(quoted);
    // The first look-up is for an error from the client's side, about a reply; the second for one
    // from the backend's side.
    tuple.set_interface(node::client_interface(skb.interface()));
    let is_original = flow::find::<F>(tuple, found).is_some();
    if !is_original {
        tuple.set_interface(ClientInterface::SHARED);
        if flow::find::<F>(tuple, found).is_none() {
            return Step::untouched();
        }
    }
    // SAFETY: one of the two look-ups has found an entry there.
    let entry = unsafe { found.assume_init_ref() };
    match entry.kind {
        FlowKind::ORIGINAL if is_original && entry.is_restored() => {
            (tuple.src, tuple.src_port) = (entry.masquerade, entry.masquerade_port);
        }
        FlowKind::ORIGINAL if is_original => {
            (tuple.src_port, tuple.dst) = (entry.client_port, entry.address);
            tuple.dst_port = entry.port;
        }
        FlowKind::MASQUERADED_REPLY => (tuple.dst, tuple.dst_port) = (entry.address, entry.port),
        // The reply is of a connection that `egress::own` has given another port.
        FlowKind::REPLY if entry.interface == ClientInterface::NODE => {
            tuple.dst_port = entry.client_port;
        }
        _ => return Outcome::pass(Counter::ReplyPassed).into(),
    }
    if quote::is_redirect::<F>(packet) {
        return Outcome::drop(Counter::IcmpRedirectDropped).into();
    }
    if entry.is_masqueraded() && entry.kind == FlowKind::ORIGINAL {
        skb.set_mark(skb.mark() | node::masquerade_mark());
    }
    let ends = (&packet.key.src, &tuple.dst);
    match quote::rewrite::<F>(skb, packet, &quote, quoted, tuple, ends) {
        Ok(()) => Outcome::pass(Counter::IcmpTranslated).into(),
        Err(_) => Outcome::drop(Counter::DroppedRewrite).into(),
    }
}

/// Handles an ICMP packet at egress.
#[inline(never)]
pub fn egress<F: Family>(
    skb: Skb,
    packet: &Packet<F::Addr>,
    scratch: &mut Scratch<F::Addr>,
) -> Step {
    let Scratch {
        found,
        key: quoted,
        holder: tuple,
        ..
    } = scratch;
    let Some(quote) = quote::read::<F>(skb, packet, quoted) else {
        return Step::untouched();
    };
    tuple.assign_reversed(quoted);
    let mut goes_back = false;
    match flow::find::<F>(tuple, found) {
        Some(Found { entry, .. }) if entry.kind == FlowKind::REPLY && entry.is_restored() => {
            (tuple.dst, tuple.dst_port) = (entry.masquerade, entry.masquerade_port);
            goes_back = true;
        }
        Some(Found { entry, .. })
            if entry.kind == FlowKind::REPLY
                && entry.interface == node::client_interface(skb.interface()) =>
        {
            (tuple.src, tuple.src_port) = (entry.address, entry.port);
            tuple.dst_port = entry.client_port;
        }
        // The error goes to the backend: it is from the client's side, or from this node about a
        // reply that it could not forward. A masqueraded flow's backend knows the client by the
        // node's address.
        _ => match flow::find::<F>(quoted, found) {
            Some(Found { entry, .. })
                if entry.kind == FlowKind::REPLY && entry.knows_masquerade() =>
            {
                (tuple.src, tuple.src_port) = (entry.masquerade, entry.masquerade_port);
            }
            _ => return Step::untouched(),
        },
    }
    if quote::is_redirect::<F>(packet) {
        return Outcome::drop(Counter::IcmpRedirectDropped).into();
    }
    skb.set_mark(skb.mark() & !globals::masquerade_marks());
    let to = if goes_back {
        &tuple.dst
    } else {
        &packet.key.dst
    };
    let ends = (&tuple.src, to);
    match quote::rewrite::<F>(skb, packet, &quote, quoted, tuple, ends) {
        Ok(()) if goes_back => Step::BACK,
        Ok(()) => Outcome::pass(Counter::IcmpTranslated).into(),
        Err(_) => Outcome::drop(Counter::DroppedRewrite).into(),
    }
}
