// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Judges ICMP errors about flows. The outer and the quoted packet must be translated, in both
//! directions. An error travels against the packet that it quotes, so it belongs to the flow with
//! the reversed tuple of the quoted packet.

use std::net::{IpAddr, SocketAddr};

use proxy_common::Counter;

use super::{
    Case, Judgement, Key, MARK, Model,
    wire::{self, Headers},
};
use crate::services::Interface;

/// Returns the headers of the quoted packet; None if it is no error about TCP, UDP or SCTP.
fn quoted(case: &Case<'_>) -> Option<Headers> {
    let (v6, l4) = (case.headers.is_v6(), case.headers.l4);
    let l3 = match (v6, case.icmp_type()?) {
        (false, 3 | 4 | 5 | 11 | 12) | (true, 1..=4) => l4 + 8,
        // In an IPv6 redirect, two addresses and an option's header precede the quote.
        (true, 137) => l4 + 48,
        _ => return None,
    };
    wire::read_at(case.given.frame, l3, v6, true)
        .filter(|quoted| !quoted.is_later() && quoted.tuple.has_ports())
}

pub(super) fn ingress(model: &Model, case: &Case<'_>) -> Judgement {
    let Some(quoted) = quoted(case) else {
        return case.untouched();
    };
    let tuple = quoted.tuple.reversed();
    let (given, src) = (case.given, case.headers.tuple.src.ip());
    let translated = |ends, inner, mark| translated(case, &quoted, ends, inner, mark);
    // The client's side sends an error about a reply.
    if let Some(flow) = model.flows.get(&Key::new(given.interface, tuple)) {
        let (backend, mark) = (flow.backend, given.mark | flow.mark());
        return translated((src, backend.ip()), (backend, flow.source), mark);
    }
    // The backend's side sends an error about a masqueraded packet.
    if let Some(key) = model.masqueraded.get(&tuple) {
        let client = model.flows[key].source;
        return translated((src, client.ip()), (client, quoted.tuple.dst), given.mark);
    }
    let is_known = model.replies.contains_key(&tuple)
        || model.untouched.contains_key(&tuple)
        || model
            .flows
            .contains_key(&Key::new(Interface::Uplink, tuple));
    case.unchanged(&[if is_known {
        Counter::ReplyPassed
    } else {
        Counter::Untouched
    }])
}

pub(super) fn egress(model: &Model, case: &Case<'_>) -> Judgement {
    let Some(quoted) = quoted(case) else {
        return case.untouched();
    };
    let dst = case.headers.tuple.dst.ip();
    let mark = case.given.mark & !MARK;
    let translated = |ends, inner| translated(case, &quoted, ends, inner, mark);
    // An error to the client, about the client's packet.
    if let Some((key, _)) = model.flow_of_reply(&quoted.tuple.reversed())
        && key.is_behind(case.given.interface)
    {
        let (client, frontend) = (key.tuple.src, key.tuple.dst);
        return translated((frontend.ip(), dst), (client, frontend));
    }
    // An error to the backend, about its answer: it knows a masqueraded client as the node.
    if let Some((_, flow)) = model.flow_of_reply(&quoted.tuple)
        && let Some(masquerade) = flow.masquerade
    {
        return translated((masquerade.ip(), dst), (flow.backend, masquerade));
    }
    case.untouched()
}

/// Checks an error's translation: its own source and destination, and those of the quoted packet.
fn translated(
    case: &Case<'_>,
    quoted: &Headers,
    (src, dst): (IpAddr, IpAddr),
    (quoted_src, quoted_dst): (SocketAddr, SocketAddr),
    mark: u32,
) -> Judgement {
    let (given, headers) = (case.given, &case.headers);
    if matches!(case.icmp_type(), Some(5 | 137)) {
        return case.dropped(Counter::IcmpRedirectDropped);
    }
    let inner = wire::with_ends(given.frame, quoted, quoted_src, quoted_dst);
    let frame = wire::with_ends(&inner, headers, (src, 0).into(), (dst, 0).into());
    let frame = wire::with_icmp_sum(given.frame, frame, headers);
    case.seen.passes(&frame, mark, &[Counter::IcmpTranslated])
}
