// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Echo requests to services, which the node answers with `answerPing`: RFC 792 and RFC 4443.

use proxy_common::{Counter, FrontendKind};

use super::{
    Given, Judgement, Model, REDIRECT, Seen,
    begin::is_loopback,
    counted, hex,
    ingress::untouched,
    wire::{self, Fragment, Headers, ICMP, ICMPV6, SCTP, TCP, UDP},
};
use crate::services::is_node;

/// Returns the ICMP types of an echo request and of its reply.
const fn types(v6: bool) -> (u8, u8) {
    if v6 { (128, 129) } else { (8, 0) }
}

impl Model {
    /// Returns true if the node must answer this packet: an echo request to a service's address.
    pub(crate) fn answers_echo(&self, given: &Given<'_>, headers: &Headers) -> bool {
        let (request, _) = types(headers.is_v6());
        let is_plain = headers.l4 - headers.l3 == if headers.is_v6() { 40 } else { 20 };
        let (src, dst) = (headers.tuple.src.ip(), headers.tuple.dst.ip());
        let is_served = self.services.values().any(|live| {
            let mut frontends = live.service.frontends.iter();
            frontends.any(|one| one.kind != FrontendKind::NodePort && one.at.ip() == dst)
        });
        self.settings.answer_ping
            && headers.icmp_type(given.frame) == Some(request)
            && is_plain
            && headers.fragment == Fragment::No
            && Self::is_for_this_node(given)
            && !is_loopback(src)
            && !is_node(dst)
            && is_served
    }

    /// Returns true if the node must refuse this packet if it is to a cluster IP: an echo request
    /// that it does not answer, or a packet of a protocol that no service has.
    pub(crate) fn is_of_no_service(&self, given: &Given<'_>, headers: &Headers) -> bool {
        let Headers { l3, l4, tuple, .. } = *headers;
        let (header, icmp) = if headers.is_v6() {
            (40, ICMPV6)
        } else {
            (20, ICMP)
        };
        let is_plain = l4 - l3 == header;
        let is_refused = match tuple.protocol {
            TCP | UDP | SCTP => false,
            protocol if protocol == icmp => {
                let (request, _) = types(headers.is_v6());
                !self.settings.answer_ping
                    && headers.icmp_type(given.frame) == Some(request)
                    && is_plain
                    && headers.fragment == Fragment::No
            }
            _ => is_plain || !headers.is_v6(),
        };
        is_refused
            // With less the programs cannot read where ports would be.
            && given.frame.len() >= l3 + header + 4
            && Self::is_for_this_node(given)
            && !is_loopback(tuple.src.ip())
            && !is_node(tuple.dst.ip())
    }
}

/// Checks the node's reply to an echo request.
pub(crate) fn judge(given: &Given<'_>, headers: &Headers, seen: &Seen) -> Judgement {
    let Headers { l3, l4, end, .. } = *headers;
    if end > given.frame.len() || end < l4 + 8 {
        return untouched(given, seen);
    }
    counted(seen, &[Counter::EchoAnswered])?;
    let (to, from) = (headers.tuple.src, headers.tuple.dst);
    let mut frame = wire::with_ends(given.frame, headers, from, to);
    frame[..6].copy_from_slice(&given.frame[6..12]);
    frame[6..12].copy_from_slice(&given.frame[..6]);
    let (_, reply) = types(headers.is_v6());
    frame[l4] = reply;
    wire::follow_half(&mut frame, l4 + 2, given.frame, l4);
    // Any hop limit of at least 64 is accepted.
    let hop = l3 + if headers.is_v6() { 7 } else { 8 };
    let hops = seen.frame.get(hop).copied().unwrap_or(0);
    if !headers.is_v6() {
        frame[hop] = hops;
        wire::follow_half(&mut frame, l3 + 10, given.frame, hop);
    }
    frame[hop] = hops;
    if seen.verdict != REDIRECT || hops < 64 || !wire::same(&frame, &seen.frame) {
        return Err(format!(
            "it must be answered by\n  {}\nbut the verdict is {}, the packet\n  {}",
            hex(&frame),
            seen.verdict,
            hex(&seen.frame)
        ));
    }
    Ok(())
}
