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
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Forward => "forward",
            Self::Reject => "reject",
            Self::Drop => "drop",
            Self::Untouched => "untouched",
        }
    }
    pub(crate) fn of(counter: Counter) -> Self {
        match counter {
            Counter::Untouched | Counter::SocketUntouched | Counter::UntouchedFlow => {
                Self::Untouched
            }
            Counter::BindRefused => Self::Reject,
            one if !one.refuses() => Self::Forward,
            one if one.name().starts_with("rejected") => Self::Reject,
            _ => Self::Drop,
        }
    }
    /// Returns all outcomes with this verdict, one bit for each.
    pub(crate) fn outcomes(self) -> u64 {
        let all = Counter::ALL.iter();
        let own = all.filter(|counter| Self::of(**counter) == self);
        own.fold(0, |bits, counter| bits | 1 << *counter as u32)
    }
}
