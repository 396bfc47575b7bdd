// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The verdict that an outcome stands for. Used by `trace` and `explain --follow`.

use proxy_common::Counter;

/// What became of a packet or socket call.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    Forward,
    Reject,
    Drop,
    Untouched,
}

impl Verdict {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Forward => "forward",
            Self::Reject => "reject",
            Self::Drop => "drop",
            Self::Untouched => "untouched",
        }
    }
    /// Returns the verdict that an outcome (a counter) belongs to.
    pub(crate) const fn of(counter: Counter) -> Self {
        match counter {
            Counter::Untouched | Counter::SocketUntouched | Counter::UntouchedFlow => {
                Self::Untouched
            }
            Counter::RejectedNoEndpoint
            | Counter::RejectedUnserved
            | Counter::RejectedUnknownFlow
            | Counter::RejectedSilently
            | Counter::BindRefused => Self::Reject,
            Counter::IcmpRedirectDropped
            | Counter::DroppedNoLocalEndpoint
            | Counter::DroppedSource
            | Counter::DroppedUnallocated
            | Counter::DroppedFragment
            | Counter::DroppedFlowTableFull
            | Counter::DroppedNoTuple
            | Counter::DroppedNoMasqueradePort
            | Counter::DroppedInconsistent
            | Counter::DroppedRewrite
            | Counter::DroppedByMark => Self::Drop,
            Counter::ForwardedHit
            | Counter::ForwardedNew
            | Counter::ForwardedElsewhere
            | Counter::ForwardedMidStream
            | Counter::ForwardedByXdp
            | Counter::ReplyByXdp
            | Counter::PastTheStack
            | Counter::ReplyPassed
            | Counter::ReplyUnmasqueraded
            | Counter::ReplyTranslated
            | Counter::Masqueraded
            | Counter::IcmpTranslated
            | Counter::SocketTranslated
            | Counter::SocketRestored
            | Counter::SocketTableFull
            | Counter::FlowEvictedEarly
            | Counter::EchoAnswered => Self::Forward,
        }
    }
    /// Returns all outcomes with this verdict, one bit for each.
    pub(crate) fn outcomes(self) -> u64 {
        let all = Counter::ALL.iter();
        let own = all.filter(|counter| Self::of(**counter) == self);
        own.fold(0, |bits, counter| bits | 1 << *counter as u32)
    }
}
