// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Judges ICMP errors about flows. The outer and the quoted packet must be translated, in both
//! directions. An error travels against the packet that it quotes, so it belongs to the flow with
//! the reversed tuple of the quoted packet.

use std::net::{IpAddr, SocketAddr};

use proxy_common::Counter;

use super::{
    Given, Judgement, Key, MARK, Model, Seen, dropped,
    egress::flow_is_of,
    ingress::untouched,
    passes,
    wire::{self, Fragment, Headers, SCTP, TCP, UDP},
};

/// The outer addresses of a translated error, and source and destination of the quoted packet.
struct Ends {
    outer: (IpAddr, IpAddr),
    inner: (SocketAddr, SocketAddr),
}

/// Returns the headers of the quoted packet; None if it is no error about TCP, UDP or SCTP.
fn quoted(given: &Given<'_>, headers: &Headers) -> Option<Headers> {
    let v6 = headers.is_v6();
    let kind = headers.icmp_type(given.frame)?;
    let l3 = match (v6, kind) {
        (false, 3 | 4 | 5 | 11 | 12) | (true, 1..=4) => headers.l4 + 8,
        // In an IPv6 redirect, two addresses and an option's header precede the quote.
        (true, 137) => headers.l4 + 48,
        _ => return None,
    };
    let quoted = wire::read_quoted(given.frame, l3, v6)?;
    let is_first = !matches!(quoted.fragment, Fragment::Later(_));
    (is_first && matches!(quoted.tuple.protocol, TCP | UDP | SCTP)).then_some(quoted)
}

fn is_redirect(given: &Given<'_>, headers: &Headers) -> bool {
    matches!(headers.icmp_type(given.frame), Some(5 | 137))
}

pub(crate) fn ingress(
    model: &Model,
    given: &Given<'_>,
    headers: &Headers,
    seen: &Seen,
) -> Judgement {
    let Some(quoted) = quoted(given, headers) else {
        return untouched(given, seen);
    };
    let tuple = quoted.tuple.reversed();
    let outer = |dst: IpAddr| (headers.tuple.src.ip(), dst);
    let interface = Model::client_interface(given.interface);
    // The client's side sends an error about a reply.
    if let Some(flow) = model.flows.get(&Key { tuple, interface }) {
        let ends = Ends {
            outer: outer(flow.backend.ip()),
            inner: (flow.backend, flow.source),
        };
        let mark = if flow.is_masqueraded { MARK } else { 0 };
        return translated(given, headers, &quoted, &ends, given.mark | mark, seen);
    }
    // The backend's side sends an error about a masqueraded packet.
    if let Some(key) = model.masqueraded.get(&tuple) {
        let client = model.flows[key].source;
        let ends = Ends {
            outer: outer(client.ip()),
            inner: (client, quoted.tuple.dst),
        };
        return translated(given, headers, &quoted, &ends, given.mark, seen);
    }
    let shared = Key {
        tuple,
        interface: 0,
    };
    let is_known = model.replies.contains_key(&tuple)
        || model.untouched.contains_key(&tuple)
        || model.flows.contains_key(&shared);
    let counter = if is_known {
        Counter::ReplyPassed
    } else {
        Counter::Untouched
    };
    passes(seen, given.frame, given.mark, &[counter])
}

pub(crate) fn egress(
    model: &Model,
    given: &Given<'_>,
    headers: &Headers,
    seen: &Seen,
) -> Judgement {
    let Some(quoted) = quoted(given, headers) else {
        return untouched(given, seen);
    };
    let outer = |src: IpAddr| (src, headers.tuple.dst.ip());
    let mark = given.mark & !MARK;
    // An error to the client, about the client's packet.
    if let Some((key, _)) = model.flow_of_reply(&quoted.tuple.reversed())
        && flow_is_of(key.interface, given)
    {
        let ends = Ends {
            outer: outer(key.tuple.dst.ip()),
            inner: (key.tuple.src, key.tuple.dst),
        };
        return translated(given, headers, &quoted, &ends, mark, seen);
    }
    // An error to the backend, about the backend's answer. The backend knows a masqueraded client
    // by the node's address.
    if let Some((_, flow)) = model.flow_of_reply(&quoted.tuple)
        && let Some(masquerade) = flow.masquerade
    {
        let ends = Ends {
            outer: outer(masquerade.ip()),
            inner: (flow.backend, masquerade),
        };
        return translated(given, headers, &quoted, &ends, mark, seen);
    }
    untouched(given, seen)
}

fn translated(
    given: &Given<'_>,
    headers: &Headers,
    quoted: &Headers,
    ends: &Ends,
    mark: u32,
    seen: &Seen,
) -> Judgement {
    if is_redirect(given, headers) {
        return dropped(seen, Counter::IcmpRedirectDropped);
    }
    let inner = wire::with_ends(given.frame, quoted, ends.inner.0, ends.inner.1);
    let (src, dst) = ends.outer;
    let (src, dst) = (SocketAddr::new(src, 0), SocketAddr::new(dst, 0));
    let frame = wire::with_ends(&inner, headers, src, dst);
    let frame = wire::with_icmp_sum(given.frame, frame, headers);
    passes(seen, &frame, mark, &[Counter::IcmpTranslated])
}
