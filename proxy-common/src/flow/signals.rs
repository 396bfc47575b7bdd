// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a packet says about the state of its connection: TCP flags, or SCTP chunks that mean the
//! same. And what sequence and acknowledgement numbers prove: an attacker who forges packets
//! without seeing the connection's own packets does not know these numbers.

use super::REFRESH_INTERVAL;
use crate::Protocol;

/// A packet's signals about the state of its flow: TCP flags, or the SCTP chunk that means the
/// same.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(transparent)]
pub struct Signals(pub u8);

impl Signals {
    /// The bits are at the positions of TCP's flags.
    pub const FIN: u8 = 0x01;
    pub const SYN: u8 = 0x02;
    pub const RST: u8 = 0x04;
    pub const ACK: u8 = 0x10;
    pub const NONE: Self = Self(0);

    #[inline(always)]
    pub const fn has(self, flag: u8) -> bool {
        self.0 & flag != 0
    }
    /// Whether a connection begins: SYN without ACK or RST.
    #[inline(always)]
    pub const fn begins(self) -> bool {
        self.0 & (Self::SYN | Self::ACK | Self::RST) == Self::SYN
    }
    /// Whether the sender says that it has received the answer to its SYN: ACK without SYN. A
    /// repeated SYN says nothing about that.
    #[inline(always)]
    pub const fn acknowledges(self) -> bool {
        self.0 & (Self::SYN | Self::ACK) == Self::ACK
    }
    /// Whether the packet is the answer to a SYN: SYN+ACK.
    #[inline(always)]
    pub const fn answers(self) -> bool {
        self.0 & (Self::SYN | Self::ACK | Self::RST) == Self::SYN | Self::ACK
    }
    /// Whether the packet is data, or a bare acknowledgement, of an open connection.
    #[inline(always)]
    pub const fn goes_on(self) -> bool {
        self.0 & (Self::SYN | Self::ACK | Self::RST | Self::FIN) == Self::ACK
    }
    /// Returns the signals of an SCTP packet by the type of its first chunk (RFC 9260, 3.2).
    #[inline(always)]
    pub const fn from_sctp_chunk(chunk: u8) -> Self {
        match chunk {
            1 => Self(Self::SYN),
            2 => Self(Self::SYN | Self::ACK),
            6 | 14 => Self(Self::RST),
            _ => Self(Self::ACK),
        }
    }
}

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
