// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Checks what the node answers by itself: echo requests to services with `answerPing` (RFC 792 and
//! RFC 4443), and rejected packets (RFC 9293 section 3.10.7.1, RFC 792 and RFC 4443).

use proxy_common::{Counter, FrontendKind, Settings};

use super::{
    Case, Judgement, Model, REDIRECT, hex,
    wire::{self, ACK, FIN, Fragment, Headers, ICMP, ICMPV6, RST, SYN, TCP, Tuple},
};
use crate::services::{Frontend, is_node};

/// Returns the ICMP types of an echo request and of its reply.
const fn types(v6: bool) -> (u8, u8) {
    if v6 { (128, 129) } else { (8, 0) }
}

impl Model {
    /// Returns true if the node must answer this packet: an echo request to a service's address.
    pub(super) fn answers_echo(&self, case: &Case<'_>) -> bool {
        let (src, dst) = (case.headers.tuple.src.ip(), case.headers.tuple.dst.ip());
        let is_at = |one: &Frontend| one.kind != FrontendKind::NodePort && one.at.ip() == dst;
        let is_served = self.frontends().any(|(_, one)| is_at(one));
        self.settings.has(Settings::ANSWER_PING)
            && is_request(case)
            && case.is_for_this_node()
            && !src.is_loopback()
            && !is_node(dst)
            && is_served
    }

    /// Returns true if the node must refuse this packet if it is to a cluster IP: an echo request
    /// that it does not answer, or a packet of a protocol that no service has.
    pub(super) fn is_of_no_service(&self, case: &Case<'_>) -> bool {
        let headers = &case.headers;
        let (header, icmp) = match headers.is_v6() {
            true => (40, ICMPV6),
            false => (20, ICMP),
        };
        let Tuple { protocol, src, dst } = headers.tuple;
        let is_refused = match protocol == icmp {
            true => !self.settings.has(Settings::ANSWER_PING) && is_request(case),
            false => !headers.tuple.has_ports() && (headers.is_plain() || !headers.is_v6()),
        };
        is_refused
            // With less the programs cannot read where ports would be.
            && case.given.frame.len() >= headers.l3 + header + 4
            && case.is_for_this_node()
            && !src.ip().is_loopback()
            && !is_node(dst.ip())
    }
}

/// Returns true for a plain echo request.
fn is_request(case: &Case<'_>) -> bool {
    let (request, _) = types(case.headers.is_v6());
    let is_plain = case.headers.is_plain() && case.headers.fragment == Fragment::No;
    is_plain && case.icmp_type() == Some(request)
}

/// Checks the node's reply to an echo request.
pub(super) fn echo(case: &Case<'_>) -> Judgement {
    let (given, headers, seen) = (case.given, &case.headers, case.seen);
    let Headers { l3, l4, end, .. } = *headers;
    if end > given.frame.len() || end < l4 + 8 {
        return case.untouched();
    }
    case.seen.counted(&[Counter::EchoAnswered])?;
    let mut frame = case.with_ends(headers.tuple.dst, headers.tuple.src);
    frame[..6].copy_from_slice(&given.frame[6..12]);
    frame[6..12].copy_from_slice(&given.frame[..6]);
    let (_, reply) = types(headers.is_v6());
    frame[l4] = reply;
    wire::follow_half(&mut frame, l4 + 2, given.frame, l4);
    // Any hop limit of at least 64 is accepted.
    let hop = headers.hop();
    let hops = seen.frame.get(hop).copied().unwrap_or(0);
    frame[hop] = hops;
    if !headers.is_v6() {
        wire::follow_half(&mut frame, l3 + 10, given.frame, hop);
    }
    if seen.verdict != REDIRECT || hops < 64 || !wire::same(&frame, &seen.frame) {
        let (wanted, verdict, seen) = (hex(&frame), seen.verdict, hex(&seen.frame));
        fail!(
            "it must be answered by\n  {wanted}\nbut the verdict is {verdict}, the packet\n  {seen}"
        );
    }
    Ok(())
}

/// Checks the answer to a packet that was rejected and counted by this counter.
pub(super) fn rejection(case: &Case<'_>, counter: Counter) -> Judgement {
    let (given, headers, seen) = (case.given, &case.headers, case.seen);
    // A fragment or a short packet cannot be answered, and a frame with a VLAN tag not by ICMP.
    let is_tagged = headers.l3 > 14 && headers.tuple.protocol != TCP;
    let is_short = given.frame.len() < headers.l4 + 8;
    if headers.fragment != Fragment::No || is_tagged || is_short {
        return case.dropped(Counter::RejectedSilently);
    }
    case.seen.counted(&[counter])?;
    if seen.verdict != REDIRECT {
        fail!("it must be answered, but the verdict is {}", seen.verdict);
    }
    let frame = &seen.frame;
    let answer = wire::read(frame).ok_or_else(|| format!("its answer is: {}", hex(frame)))?;
    let is_right = match headers.tuple.protocol {
        TCP => is_reset(case, &answer),
        _ => is_unreachable(case, &answer),
    };
    let fault = wire::fault(frame);
    let back = [&given.frame[6..12], &given.frame[..6]].concat();
    for (is, fault) in [
        (frame[..12] != back, "does not go back to its sender's MAC"),
        (fault.is_some(), fault.unwrap_or_default()),
        (answer.end != frame.len(), "is not as long as it says"),
        (frame[answer.hop()] < 64, "does not get far"),
        (!is_right, "has other ends, or says something else"),
    ] {
        if is {
            fail!("the answer {fault}: {}", hex(frame));
        }
    }
    Ok(())
}

/// Returns true if the answer is a port unreachable that quotes the packet.
fn is_unreachable(case: &Case<'_>, answer: &Headers) -> bool {
    let (frame, headers) = (&case.seen.frame, &case.headers);
    let (protocol, kind) = match headers.is_v6() {
        true => (ICMPV6, [1, 4]),
        false => (ICMP, [3, 3]),
    };
    let quoted = &case.given.frame[headers.l3..headers.l4 + 8];
    let quoted = &quoted[..quoted.len().min(128)];
    let Tuple { src, dst, .. } = answer.tuple;
    let (from, to) = (headers.tuple.src.ip(), headers.tuple.dst.ip());
    // The checksum, between the two, has been checked.
    (answer.tuple.protocol, src.ip(), dst.ip()) == (protocol, to, from)
        && frame[answer.l4..].starts_with(&kind)
        && frame[answer.l4 + 4..] == [&[0; 4][..], quoted].concat()
}

/// Returns true if the answer is a plain reset with the right numbers.
fn is_reset(case: &Case<'_>, answer: &Headers) -> bool {
    let (given, headers) = (case.given, &case.headers);
    let data = headers.l4 + 4 * usize::from(given.frame[headers.l4 + 12] >> 4);
    let mut length = headers.end.saturating_sub(data) as u32;
    for flag in [SYN, FIN] {
        length += u32::from(headers.flags & flag != 0);
    }
    let expected = match headers.flags & ACK != 0 {
        true => (RST, headers.acknowledgement, 0),
        false => (RST | ACK, 0, headers.sequence.wrapping_add(length)),
    };
    let numbers = (answer.flags, answer.sequence, answer.acknowledgement);
    answer.tuple == headers.tuple.reversed() && answer.end - answer.l4 == 20 && numbers == expected
}
