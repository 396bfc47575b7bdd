// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Checks the answers to rejected packets: RFC 9293 section 3.10.7.1, RFC 792 and RFC 4443.

use proxy_common::Counter;

use super::{
    Given, Judgement, REDIRECT, Seen, counted, dropped, hex,
    wire::{self, ACK, FIN, Fragment, Headers, ICMP, ICMPV6, RST, SYN, TCP},
};

/// Checks the answer to a packet that was rejected and counted by this counter.
pub(crate) fn judge(
    given: &Given<'_>,
    headers: &Headers,
    seen: &Seen,
    counter: Counter,
) -> Judgement {
    // A fragment cannot be answered, and a frame with a VLAN tag not by ICMP.
    let is_tagged = headers.l3 > 14;
    if headers.fragment != Fragment::No || is_tagged && headers.tuple.protocol != TCP {
        return dropped(seen, Counter::RejectedSilently);
    }
    counted(seen, &[counter])?;
    if seen.verdict != REDIRECT {
        return Err(format!(
            "it must be answered, but the verdict is {}",
            seen.verdict
        ));
    }
    let frame = &seen.frame;
    let wrong = |what: &str| Err(format!("the answer {what}: {}", hex(frame)));
    if frame[..6] != given.frame[6..12] || frame[6..12] != given.frame[..6] {
        return wrong("does not go back to its sender's MAC");
    }
    let Some(answer) = wire::read(frame) else {
        return wrong("is no packet");
    };
    if let Some(fault) = wire::fault(frame) {
        return wrong(fault);
    }
    if answer.end != frame.len() {
        return wrong("is not as long as it says");
    }
    let hops = frame[answer.l3 + if answer.is_v6() { 7 } else { 8 }];
    if hops < 64 {
        return wrong("does not get far");
    }
    let (from, to) = (headers.tuple.src, headers.tuple.dst);
    if headers.tuple.protocol == TCP {
        if answer.tuple != headers.tuple.reversed() {
            return wrong("has other ends");
        }
        return reset(given, headers, &answer).map_or(Ok(()), wrong);
    }
    let v6 = headers.is_v6();
    let kinds = if v6 { [1, 4] } else { [3, 3] };
    if (answer.tuple.src.ip(), answer.tuple.dst.ip()) != (to.ip(), from.ip()) {
        return wrong("has other ends");
    }
    if answer.tuple.protocol != if v6 { ICMPV6 } else { ICMP } {
        return wrong("is no ICMP");
    }
    let message = &frame[answer.l4..];
    if message[..2] != kinds || message[4..8] != [0; 4] {
        return wrong("is no port unreachable");
    }
    let quoted = &given.frame[headers.l3..headers.l4 + 8];
    if message[8..] != quoted[..quoted.len().min(128)] {
        return wrong("quotes something else");
    }
    Ok(())
}

/// Returns what is wrong with a TCP reset; None if it is correct.
fn reset(given: &Given<'_>, headers: &Headers, answer: &Headers) -> Option<&'static str> {
    let data = headers.l4 + 4 * usize::from(given.frame[headers.l4 + 12] >> 4);
    let mut length = headers.end.saturating_sub(data) as u32;
    for flag in [SYN, FIN] {
        length += u32::from(headers.flags & flag != 0);
    }
    let (flags, sequence, acknowledgement) = if headers.flags & ACK != 0 {
        (RST, headers.acknowledgement, 0)
    } else {
        (RST | ACK, 0, headers.sequence.wrapping_add(length))
    };
    if (answer.flags, answer.end - answer.l4) != (flags, 20) {
        return Some("is no plain reset");
    }
    if (answer.sequence, answer.acknowledgement) != (sequence, acknowledgement) {
        return Some("has other numbers");
    }
    None
}
