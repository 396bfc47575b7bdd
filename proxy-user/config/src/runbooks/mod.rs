// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Names the section of docs/runbooks.md that explains what an operator sees. A new counter or
//! warning topic does not compile without its section. The tests compare sections, alerts and
//! dashboard with what exists. Used by commands that print outcomes or warnings.

use control::warnings::Topic;
use proxy_common::Counter;

/// Returns the page about a packet's outcome, as a path from the top of the clone with the anchor
/// of a section; None for normal outcomes.
pub fn of_outcome(counter: Counter) -> Option<&'static str> {
    Some(match counter {
        Counter::Untouched
        | Counter::ForwardedHit
        | Counter::ForwardedNew
        | Counter::ForwardedElsewhere
        | Counter::ReplyPassed
        | Counter::ReplyUnmasqueraded
        | Counter::ReplyTranslated
        | Counter::Masqueraded
        | Counter::UntouchedFlow
        | Counter::IcmpTranslated
        | Counter::SocketTranslated
        | Counter::SocketUntouched
        | Counter::SocketRestored
        | Counter::FlowEvictedEarly
        | Counter::EchoAnswered
        | Counter::ForwardedMidStream
        | Counter::ForwardedByXdp
        | Counter::ReplyByXdp
        | Counter::PastTheStack => return None,
        Counter::IcmpRedirectDropped => "docs/runbooks.md#icmp-redirect",
        Counter::RejectedNoEndpoint | Counter::DroppedNoLocalEndpoint => {
            "docs/runbooks.md#no-endpoint"
        }
        Counter::RejectedUnserved | Counter::DroppedUnallocated => "docs/runbooks.md#unserved-port",
        Counter::RejectedUnknownFlow => "docs/runbooks.md#unknown-flow",
        Counter::RejectedSilently => "docs/runbooks.md#rejections-limited",
        Counter::DroppedSource | Counter::DroppedByMark => "docs/runbooks.md#not-allowed",
        Counter::DroppedFragment => "docs/runbooks.md#fragments",
        Counter::DroppedFlowTableFull => "docs/runbooks.md#flow-table-full",
        Counter::DroppedNoTuple | Counter::DroppedNoMasqueradePort => {
            "docs/runbooks.md#ports-used-up"
        }
        Counter::DroppedInconsistent => "docs/runbooks.md#inconsistent-maps",
        Counter::DroppedRewrite => "docs/runbooks.md#rewrite-failed",
        Counter::SocketTableFull => "docs/runbooks.md#maps-full",
        Counter::BindRefused => "docs/runbooks.md#node-port-taken",
        Counter::DroppedHeld => "docs/runbooks.md#import",
    })
}

/// Returns the page about the warnings of a topic, in the same form.
pub fn of_warning(topic: &Topic) -> &'static str {
    topic.page()
}

#[cfg(test)]
mod mentions;
#[cfg(test)]
mod tests;
