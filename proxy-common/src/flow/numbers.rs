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
