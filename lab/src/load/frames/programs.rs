// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Bare XDP programs for benchmarks, written instruction by instruction: a generator that writes
//! every header anew, a mirror that only sends frames back, a sink that counts and drops them, and
//! a far end that counts or answers.

use std::os::fd::{AsRawFd, OwnedFd};

use super::{CLIENTS, UPPER};
use crate::bpf::{CALL_LOOKUP, Instruction, always};

const CALL_REDIRECT: i32 = 23;
const DROP: i32 = 1;
const PASS: i32 = 2;
const TX: i32 = 3;
/// Byte offsets in the frame: Ethernet's type, IPv4's identification, protocol and addresses, and
/// UDP's ports.
const TYPE: i16 = 12;
const IDENTIFICATION: i16 = 18;
const PROTOCOL: i16 = 23;
const SOURCE: i16 = 26;
const DESTINATION: i16 = 30;
const SOURCE_PORT: i16 = 34;
const DESTINATION_PORT: i16 = 36;
const DATAGRAM: i32 = 17;

/// Returns instructions that look up a map's element, whose key is at this offset of the stack.
/// Afterwards r0 points to the element's value; the frame is dropped if there is no element.
fn lookup(map: &OwnedFd, key_at: i32) -> [Instruction; 8] {
    [
        Instruction(0x18, 0x11, 0, map.as_raw_fd()),
        Instruction(0, 0, 0, 0),
        Instruction(0xbf, 0xa2, 0, 0),
        Instruction(0x07, 2, 0, key_at),
        Instruction(0x85, 0, 0, CALL_LOOKUP),
        Instruction(0x55, 0, 2, 0),
        Instruction(0xb7, 0, 0, DROP),
        Instruction(0x95, 0, 0, 0),
    ]
}

/// Returns instructions that look up element 0 of an array map. Afterwards r0 points to its value.
fn element(map: &OwnedFd) -> Vec<Instruction> {
    let mut program = vec![Instruction(0x62, 10, -4, 0)];
    program.extend(lookup(map, -4));
    program
}

/// Returns instructions that set r2 to the start of the frame whose context is in r1. The frame is
/// dropped if it is shorter than `length`.
fn frame_of(length: i32) -> [Instruction; 7] {
    [
        Instruction(0x61, 0x12, 0, 0),
        Instruction(0x61, 0x13, 4, 0),
        Instruction(0xbf, 0x24, 0, 0),
        Instruction(0x07, 4, 0, length),
        Instruction(0xbd, 0x34, 2, 0),
        Instruction(0xb7, 0, 0, DROP),
        Instruction(0x95, 0, 0, 0),
    ]
}

/// Returns a program that overwrites every frame with `frame`, writes a flow's number into its
/// source address and port, and redirects it. The element of `state`: number of the next frame,
/// number of flows minus 1, index of the interface.
pub(super) fn generator(state: &OwnedFd, frame: &[u8]) -> Vec<Instruction> {
    let mut program = vec![Instruction(0xbf, 0x16, 0, 0)];
    program.extend(element(state));
    program.extend([
        Instruction(0xbf, 0x07, 0, 0),
        Instruction(0x61, 0x78, 0, 0),
        Instruction(0xbf, 0x81, 0, 0),
        Instruction(0x07, 1, 0, 1),
        Instruction(0x63, 0x17, 0, 0),
        // A multiplicative hash, so that flows come in a mixed order.
        Instruction(0x24, 8, 0, 0x9e37_79b1_u32.cast_signed()),
        Instruction(0x61, 0x71, 4, 0),
        Instruction(0x5f, 0x18, 0, 0),
        Instruction(0xbf, 0x61, 0, 0),
    ]);
    program.extend(frame_of(60));
    for (word, offset) in frame[..44].chunks_exact(4).zip((0..).step_by(4)) {
        let word = i32::from_ne_bytes(word.try_into().expect("chunks of four"));
        program.push(Instruction(0x62, 2, offset, word));
    }
    program.extend([
        // The third byte of the source address, the identification, and the source port.
        Instruction(0xbf, 0x81, 0, 0),
        Instruction(0x77, 1, 0, 12),
        Instruction(0x57, 1, 0, UPPER),
        Instruction(0x73, 0x12, SOURCE + 2, 0),
        Instruction(0xb7, 3, 0, UPPER),
        Instruction(0x1f, 0x13, 0, 0),
        Instruction(0x73, 0x32, IDENTIFICATION, 0),
        Instruction(0xbf, 0x81, 0, 0),
        Instruction(0x57, 1, 0, 4095),
        Instruction(0x07, 1, 0, 1024),
        Instruction(0xdc, 1, 0, 16),
        Instruction(0x6b, 0x12, SOURCE_PORT, 0),
        Instruction(0x61, 0x71, 8, 0),
        Instruction(0xb7, 2, 0, 0),
        Instruction(0x85, 0, 0, CALL_REDIRECT),
        Instruction(0x95, 0, 0, 0),
    ]);
    program
}

/// Returns instructions that add 1 to the first word of an array map's element 0. Afterwards r0
/// points to the element's value.
fn counted(map: &OwnedFd) -> Vec<Instruction> {
    let mut program = element(map);
    program.extend([
        Instruction(0x79, 0x01, 0, 0),
        Instruction(0x07, 1, 0, 1),
        Instruction(0x7b, 0x10, 0, 0),
    ]);
    program
}

/// Returns a program that counts frames in element 0 of an array map and drops them.
pub fn sink(count: &OwnedFd) -> Vec<Instruction> {
    let mut program = counted(count);
    program.extend(always(DROP));
    program
}

/// Returns a program that does what [`mirror`] does, but first looks up the frame's flow in the map
/// `flows` and reads a word of the flow's value.
pub fn looking_mirror(flows: &OwnedFd) -> Vec<Instruction> {
    /// Offset of a word of the value that is not in the element's first cache line, where the key
    /// is.
    const IN_VALUE: i16 = 40;
    let mut program = vec![Instruction(0xbf, 0x16, 0, 0)];
    program.extend(frame_of(42));
    // The key is both addresses, both ports and the protocol.
    for (from, to) in [(SOURCE, -16), (DESTINATION, -12), (SOURCE_PORT, -8)] {
        program.extend([
            Instruction(0x61, 0x25, from, 0),
            Instruction(0x63, 0x5a, to, 0),
        ]);
    }
    program.push(Instruction(0x62, 10, -4, DATAGRAM));
    program.extend(lookup(flows, -16));
    program.extend([
        Instruction(0x79, 0x01, IN_VALUE, 0),
        // Continue if the word is not 0, else drop the frame.
        Instruction(0x55, 1, 2, 0),
        Instruction(0xb7, 0, 0, DROP),
        Instruction(0x95, 0, 0, 0),
        Instruction(0xbf, 0x61, 0, 0),
    ]);
    program.extend(mirror());
    program
}

/// Returns the program of the far end. It passes on everything except IPv4 datagrams, and drops
/// datagrams to the generator's clients, because these are answers. It counts other datagrams in
/// the first word of the element of `state`. It sends them back as answers if the second word is
/// not 0, else it drops them.
pub fn far_end(state: &OwnedFd) -> Vec<Instruction> {
    let mut program = vec![Instruction(0xbf, 0x16, 0, 0)];
    program.extend(frame_of(42));
    program.extend([
        Instruction(0xbf, 0x27, 0, 0),
        Instruction(0x69, 0x23, TYPE, 0),
        Instruction(0x55, 3, 2, i32::from(0x0800_u16.to_be())),
        Instruction(0x71, 0x23, PROTOCOL, 0),
        Instruction(0x15, 3, 2, DATAGRAM),
        Instruction(0xb7, 0, 0, PASS),
        Instruction(0x95, 0, 0, 0),
        Instruction(0x69, 0x73, DESTINATION, 0),
        Instruction(0x55, 3, 2, i32::from(CLIENTS.to_be())),
        Instruction(0xb7, 0, 0, DROP),
        Instruction(0x95, 0, 0, 0),
    ]);
    program.extend(counted(state));
    program.extend([
        Instruction(0x79, 0x01, 8, 0),
        Instruction(0x55, 1, 2, 0),
        Instruction(0xb7, 0, 0, DROP),
        Instruction(0x95, 0, 0, 0),
        // Swap both addresses and both ports.
        Instruction(0x61, 0x71, SOURCE, 0),
        Instruction(0x61, 0x72, DESTINATION, 0),
        Instruction(0x63, 0x27, SOURCE, 0),
        Instruction(0x63, 0x17, DESTINATION, 0),
        Instruction(0x69, 0x71, SOURCE_PORT, 0),
        Instruction(0x69, 0x72, DESTINATION_PORT, 0),
        Instruction(0x6b, 0x27, SOURCE_PORT, 0),
        Instruction(0x6b, 0x17, DESTINATION_PORT, 0),
        Instruction(0xbf, 0x61, 0, 0),
    ]);
    program.extend(mirror());
    program
}

/// Returns a program that swaps a frame's MAC addresses and sends it back.
pub fn mirror() -> Vec<Instruction> {
    let mut program = Vec::from(frame_of(14));
    program.extend([
        Instruction(0x61, 0x21, 0, 0),
        Instruction(0x69, 0x24, 4, 0),
        Instruction(0x61, 0x25, 6, 0),
        Instruction(0x69, 0x20, 10, 0),
        Instruction(0x63, 0x52, 0, 0),
        Instruction(0x6b, 0x02, 4, 0),
        Instruction(0x63, 0x12, 6, 0),
        Instruction(0x6b, 0x42, 10, 0),
        Instruction(0xb7, 0, 0, TX),
        Instruction(0x95, 0, 0, 0),
    ]);
    program
}
