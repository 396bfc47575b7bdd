// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What sequence and acknowledgement numbers prove. An attacker who forges packets without seeing
//! the connection's own packets does not know these numbers.

use super::{REFRESH_INTERVAL, Signals};
use crate::Protocol;

/// How far a sender may be ahead of what the receiver has acknowledged, in bytes: more than buffers
/// of 16 MiB, which hosts with fast networks have, let a connection have in flight. Together with
/// `BEHIND` it is a 128th of all numbers, so it can't be mistaken where they wrap around, and who
/// forges an end must guess, once in 128 times.
const AHEAD: u32 = 28 << 20;
/// How far a number may be behind: that of a repetition, or of a segment that was overtaken.
const BEHIND: u32 = 4 << 20;

/// Whether a segment's acknowledgement number proves that its sender has received the backend's
/// SYN+ACK. `next` is the sequence number that follows the SYN+ACK. Data that a backend sends at
/// once (TCP fast open) may be acknowledged along with it; a guess succeeds once in 65 536 times.
#[inline(always)]
pub const fn proves_answer(acknowledgement: u32, next: u32) -> bool {
    acknowledgement.wrapping_sub(next) < 1 << 16
}

/// Whether a number is near the last number seen in the same field, where the connection's next
/// segments may lie. A guess succeeds once in 128 times. `last` is 0 if no number has been seen.
/// Then every number is near.
#[inline(always)]
pub const fn is_near(number: u32, last: u32) -> bool {
    last == 0 || number.wrapping_sub(last).wrapping_add(BEHIND) <= BEHIND + AHEAD
}

/// Whether a reply changes nothing in its flow's entries, so that it need not be accounted: it
/// neither begins nor ends a connection, the last accounted reply is recent (`age`, in
/// nanoseconds), and its acknowledgement number (`number`) is not far from that reply's (`last`;
/// TCP only). So the numbers that [`is_near`] compares stay near.
#[inline(always)]
pub fn is_routine(protocol: Protocol, signals: Signals, number: u32, last: u32, age: u64) -> bool {
    const FAR: u32 = 1 << 20;
    if age >= REFRESH_INTERVAL || signals.has(Signals::SYN | Signals::FIN | Signals::RST) {
        return false;
    }
    match protocol {
        Protocol::TCP => {
            let is_close = number.wrapping_sub(last).wrapping_add(FAR) <= 2 * FAR;
            signals.acknowledges() && last != 0 && is_close
        }
        Protocol::UDP => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_without_fin_is_routine_soon_after_an_accounted_one() {
        let (ack, fin) = (Signals(Signals::ACK), Signals(Signals::ACK | Signals::FIN));
        let tcp =
            |signals, number, last, age| is_routine(Protocol::TCP, signals, number, last, age);
        assert!(tcp(ack, 5000, 4000, 0));
        assert!(!tcp(ack, 5000, 4000, REFRESH_INTERVAL), "once a second");
        assert!(!tcp(ack, 5000, 0, 0), "none was accounted yet");
        assert!(!tcp(ack, 4000 + (2 << 20), 4000, 0), "far ahead");
        assert!(!tcp(fin, 5000, 4000, 0) && !tcp(Signals::NONE, 5000, 4000, 0));
        assert!(is_routine(Protocol::UDP, Signals::NONE, 0, 0, 0));
        assert!(!is_routine(
            Protocol::UDP,
            Signals::NONE,
            0,
            0,
            REFRESH_INTERVAL
        ));
        assert!(
            !is_routine(Protocol::SCTP, Signals::NONE, 0, 7, 0),
            "its tags are noted at egress"
        );
    }

    #[test]
    fn an_acknowledgement_of_the_syn_ack_proves_its_receipt() {
        assert!(proves_answer(1001, 1001));
        assert!(
            proves_answer(5, u32::MAX - 5),
            "sequence numbers wrap around"
        );
        assert!(!proves_answer(1000, 1001));
        assert!(!proves_answer(1001 + 65_536, 1001));
    }

    #[test]
    fn numbers_within_one_window_are_near() {
        for last in [1, AHEAD, u32::MAX, 1 << 31] {
            for (ahead, behind) in [(0, 0), (1, 1), (16 << 20, 1), (AHEAD, BEHIND)] {
                assert!(is_near(last.wrapping_add(ahead), last));
                assert!(is_near(last.wrapping_sub(behind), last));
            }
            for (ahead, behind) in [(AHEAD + 1, BEHIND + 1), (1 << 31, 1 << 31)] {
                assert!(!is_near(last.wrapping_add(ahead), last));
                assert!(!is_near(last.wrapping_sub(behind), last));
            }
        }
    }

    #[test]
    fn every_number_is_near_if_no_earlier_number_is_known() {
        for number in [0, 1, AHEAD + 1, 1 << 31, u32::MAX] {
            assert!(is_near(number, 0));
        }
    }
}
