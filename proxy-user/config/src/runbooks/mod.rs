// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Names the page of docs/runbooks that explains what an operator sees. A new counter or warning
//! topic does not compile without its page. The tests compare pages, alerts and dashboard with what
//! exists. Used by commands that print outcomes or warnings.

use control::warnings::Topic;
use proxy_common::Counter;

/// Returns the page about a packet's outcome, as a path from the top of the clone; None for normal
/// outcomes.
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
        Counter::IcmpRedirectDropped => "docs/runbooks/icmp-redirect.md",
        Counter::RejectedNoEndpoint | Counter::DroppedNoLocalEndpoint => {
            "docs/runbooks/no-endpoint.md"
        }
        Counter::RejectedUnserved | Counter::DroppedUnallocated => "docs/runbooks/unserved-port.md",
        Counter::RejectedUnknownFlow => "docs/runbooks/unknown-flow.md",
        Counter::RejectedSilently => "docs/runbooks/rejections-limited.md",
        Counter::DroppedSource | Counter::DroppedByMark => "docs/runbooks/not-allowed.md",
        Counter::DroppedFragment => "docs/runbooks/fragments.md",
        Counter::DroppedFlowTableFull => "docs/runbooks/flow-table-full.md",
        Counter::DroppedNoTuple | Counter::DroppedNoMasqueradePort => {
            "docs/runbooks/ports-used-up.md"
        }
        Counter::DroppedInconsistent => "docs/runbooks/inconsistent-maps.md",
        Counter::DroppedRewrite => "docs/runbooks/rewrite-failed.md",
        Counter::SocketTableFull => "docs/runbooks/maps-full.md",
        Counter::BindRefused => "docs/runbooks/node-port-taken.md",
        Counter::DroppedHeld => "docs/runbooks/import.md",
    })
}

/// Returns the page about the warnings of a topic, as a path from the top of the clone.
pub fn of_warning(topic: &Topic) -> &'static str {
    topic.page()
}

#[cfg(test)]
mod mentions;
#[cfg(test)]
mod tests;
