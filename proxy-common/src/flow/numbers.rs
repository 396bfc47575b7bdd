// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the numbers in a segment prove. Someone who forges packets without seeing the connection's own does not know them.

/// How far a sender may be ahead of what the receiver has acknowledged, in bytes: the most that Linux lets a connection have on
/// its way by default (`tcp_wmem`).
const WINDOW: u32 = 4 << 20;

/// Whether a segment's acknowledgement number proves that its sender has received the backend's SYN+ACK. `next` is the sequence
/// number that follows that SYN. Data that a backend sends at once (TCP fast open) may be acknowledged along with it; a guess
/// succeeds once in 65 536 times.
#[inline(always)]
pub const fn proves_answer(acknowledgement: u32, next: u32) -> bool {
    acknowledgement.wrapping_sub(next) < 1 << 16
}

/// Whether a number lies near the one that was last seen in its place: where a connection's next segments may be. A guess
/// succeeds once in 512 times. 0 stands for none: nothing has been seen yet of a connection that was imported.
#[inline(always)]
pub const fn is_near(number: u32, last: u32) -> bool {
    last == 0 || number.wrapping_sub(last).wrapping_add(WINDOW) <= 2 * WINDOW
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_proven_by_the_number_that_follows_its_syn() {
        assert!(proves_answer(1001, 1001));
        assert!(
            proves_answer(5, u32::MAX - 5),
            "sequence numbers wrap around"
        );
        assert!(!proves_answer(1000, 1001));
        assert!(!proves_answer(1001 + 65_536, 1001));
    }

    #[test]
    fn near_is_as_far_as_a_sender_gets() {
        for last in [1, WINDOW, u32::MAX, 1 << 31] {
            for step in [0, 1, WINDOW] {
                assert!(is_near(last.wrapping_add(step), last));
                assert!(is_near(last.wrapping_sub(step), last));
            }
            for step in [WINDOW + 1, 1 << 31] {
                assert!(!is_near(last.wrapping_add(step), last));
                assert!(!is_near(last.wrapping_sub(step), last));
            }
        }
    }

    #[test]
    fn every_number_is_near_before_one_is_known() {
        for number in [0, 1, WINDOW + 1, 1 << 31, u32::MAX] {
            assert!(is_near(number, 0));
        }
    }
}
