// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Chooses sequence numbers and tags for generated packets: mostly those that continue a
//! conversation, else near the edges of its window, or far off.

use crate::{
    generate::Generator,
    model::{
        life::{AHEAD, BEHIND},
        wire::{SCTP, TCP},
    },
    packets::Shape,
};

impl Generator {
    /// Makes client or backend of a conversation send some bytes, so that later numbers are higher.
    pub(crate) fn advance(&mut self, index: usize) {
        let bytes = self.random.pick(&[1, 1000, 70_000, AHEAD, AHEAD + 1]);
        let sent = &mut self.conversations[index].sent;
        let side = if self.random.one_in(2) {
            &mut sent.0
        } else {
            &mut sent.1
        };
        *side = side.wrapping_add(bytes);
    }
    /// Returns a random shape with numbers that fit to the bytes sent by the packet's sender
    /// (`own`) and by the other side.
    pub(crate) fn numbered(&mut self, protocol: u8, other_tag: i32, own: i32, other: i32) -> Shape {
        let shape = self.shape(protocol);
        let random = &mut self.random;
        let timestamp = match protocol {
            TCP => random.pick(&[0, 0, 1000, 2000, 0x8000_0700]),
            _ => 0,
        };
        let (ahead, acked) = match protocol {
            TCP => {
                let off = [-BEHIND - 1, -BEHIND, AHEAD, AHEAD + 1, 0x3000_0000];
                let ahead = if random.one_in(5) {
                    random.pick(&off)
                } else {
                    0
                };
                let acked = if random.one_in(12) {
                    random.pick(&off)
                } else {
                    0
                };
                (own.wrapping_add(ahead), other.wrapping_add(acked))
            }
            SCTP => {
                let ahead = if random.one_in(4) {
                    random.pick(&[other_tag, 1])
                } else {
                    0
                };
                (ahead, i32::from(random.one_in(8)))
            }
            _ => (0, 0),
        };
        Shape {
            ahead,
            acked,
            timestamp,
            ..shape
        }
    }
}
