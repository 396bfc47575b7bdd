// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The outcome of a socket call, as seen after the hook that served the call. The reason for a
//! refusal is not visible there: the command asks the policy.

use super::Hook;
use crate::Counter;

/// Pseudo result: the call succeeds, and what the socket sends is dropped.
pub const DROPPED: i32 = 1;
/// The result of a call that is refused with an answer.
pub const REFUSED: i32 = -111;

/// The outcome of a call with this result; `has_entry`: the socket has an entry that explains its
/// address. For a refusal, only the kind is right: see [`is_refusal`].
#[inline(always)]
pub const fn outcome(hook: Hook, result: i32, has_entry: bool) -> Counter {
    match hook {
        Hook::Bind if result < 0 => Counter::BindRefused,
        Hook::Receive | Hook::PeerName if has_entry => Counter::SocketRestored,
        Hook::Connect | Hook::Send => match result {
            REFUSED => Counter::RejectedNoEndpoint,
            0 if has_entry => Counter::SocketTranslated,
            0 => Counter::SocketUntouched,
            _ => Counter::DroppedNoLocalEndpoint,
        },
        _ => Counter::SocketUntouched,
    }
}

/// Whether the call was refused, so that only the policy knows the reason.
pub const fn is_refusal(hook: Hook, result: i32) -> bool {
    matches!(hook, Hook::Connect | Hook::Send) && result != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_what_it_returns_and_what_its_entry_says() {
        const EPERM: i32 = -1;
        const EADDRINUSE: i32 = -98;
        for (hook, result, has_entry, counter) in [
            (Hook::Connect, 0, true, Counter::SocketTranslated),
            (Hook::Connect, 0, false, Counter::SocketUntouched),
            (Hook::Connect, REFUSED, false, Counter::RejectedNoEndpoint),
            (
                Hook::Connect,
                DROPPED,
                true,
                Counter::DroppedNoLocalEndpoint,
            ),
            (Hook::Send, EPERM, false, Counter::DroppedNoLocalEndpoint),
            (Hook::Send, 0, true, Counter::SocketTranslated),
            (Hook::Receive, 0, true, Counter::SocketRestored),
            (Hook::PeerName, 0, false, Counter::SocketUntouched),
            (Hook::Bind, EADDRINUSE, false, Counter::BindRefused),
            (Hook::Bind, 0, false, Counter::SocketUntouched),
        ] {
            assert_eq!(outcome(hook, result, has_entry), counter, "{hook:?}");
        }
    }
}
