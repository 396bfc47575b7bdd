// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The outcome of a socket call, as seen after the hook that served the call. Why a call was
//! refused is not visible there: `portolan trace` asks the policy.

use super::Hook;
use crate::Counter;

/// Pseudo result of a call that succeeds although what the socket sends is dropped.
pub const DROPPED: i32 = 1;
/// The result of a call that is rejected: -ECONNREFUSED.
pub const REFUSED: i32 = -111;

/// Returns the outcome of a call with this result. `has_entry`: the socket has an entry that
/// explains its address. For a refused call, the outcome says only whether it is rejected or
/// dropped: see [`is_refusal`].
#[inline(always)]
pub const fn outcome(hook: Hook, result: i32, has_entry: bool) -> Counter {
    match hook {
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

/// Whether the call was refused; then only the policy knows why.
pub const fn is_refusal(hook: Hook, result: i32) -> bool {
    matches!(hook, Hook::Connect | Hook::Send) && result != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_calls_outcome_follows_from_its_result_and_entry() {
        const EPERM: i32 = -1;
        let dropped = Counter::DroppedNoLocalEndpoint;
        for (hook, result, has_entry, counter) in [
            (Hook::Connect, 0, true, Counter::SocketTranslated),
            (Hook::Connect, 0, false, Counter::SocketUntouched),
            (Hook::Connect, REFUSED, false, Counter::RejectedNoEndpoint),
            (Hook::Connect, DROPPED, true, dropped),
            (Hook::Send, EPERM, false, dropped),
            (Hook::Send, 0, true, Counter::SocketTranslated),
            (Hook::Receive, 0, true, Counter::SocketRestored),
            (Hook::PeerName, 0, false, Counter::SocketUntouched),
        ] {
            assert_eq!(outcome(hook, result, has_entry), counter, "{hook:?}");
        }
    }
}
