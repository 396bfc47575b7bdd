// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The numbers of generated packets: mostly those of a conversation that goes on, else near the
//! edges of its window, or far off.

use crate::{
    generate::Generator,
    model::wire::{SCTP, TCP},
    packets::Shape,
};

/// The size of the window around the last number.
const WINDOW: i32 = 4 << 20;

impl Generator {
    /// Makes one side of a conversation send some bytes.
    pub(crate) fn advance(&mut self, index: usize) {
        let bytes = self.random.pick(&[1, 1000, 70_000, WINDOW, WINDOW + 1]);
        let sent = &mut self.conversations[index].sent;
        let side = if self.random.one_in(2) {
            &mut sent.0
        } else {
            &mut sent.1
        };
        *side = side.wrapping_add(bytes);
    }
    /// A shape with numbers that follow from the bytes sent by the sender and by the other side.
    pub(crate) fn numbered(&mut self, protocol: u8, other_tag: i32, own: i32, other: i32) -> Shape {
        let shape = self.shape(protocol);
        let random = &mut self.random;
        let timestamp = match protocol {
            TCP => random.pick(&[0, 0, 1000, 2000, 0x8000_0700]),
            _ => 0,
        };
        let (ahead, acked) = match protocol {
            TCP => {
                let off = [-WINDOW - 1, -WINDOW, WINDOW, WINDOW + 1, 0x3000_0000];
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
