// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The smallest eBPF programs that do one thing, written instruction by instruction: bare map
//! operations, and a wrapper. The wrapper changes the packet in each repetition of a test run
//! before the program under test gets it.

use std::os::fd::{AsRawFd, OwnedFd};

use lab::bpf::Instruction;

/// How the repetitions of a test run differ. Repetition `n` (from zero, over all runs) uses the
/// address `base + 1 + n % count`, and also another client if `clients` is set.
#[derive(Clone, Copy)]
pub(crate) struct Rotation {
    /// Added to the number in the last 32 bits of the address.
    pub(crate) base: u32,
    /// How many addresses there are, at least 1.
    pub(crate) count: u32,
    pub(crate) clients: bool,
}

impl Rotation {
    /// Goes through the addresses of this many services.
    pub(crate) const fn through(count: u32) -> Self {
        Self {
            base: 0,
            count,
            clients: false,
        }
    }
}

/// Which end of a packet the client is. The other one has the repetition's address.
#[derive(Clone, Copy)]
pub(crate) enum Direction {
    /// From the client to this port.
    To(u16),
    /// A reply: from this port of the address so far after the repetition's, to the client.
    From(u32, u16),
}

/// Byte offsets of one IP family's fields in a packet without options, and (`key_...`) in a key.
#[derive(Clone, Copy)]
pub(crate) struct Offsets {
    /// The last four bytes of the source address; `dst` the same of the destination address.
    pub(crate) src: i16,
    pub(crate) dst: i16,
    pub(crate) ports: i16,
    /// The time to live, or hop limit.
    pub(crate) hops: i16,
    pub(crate) key_src: i16,
    pub(crate) key_dst: i16,
    pub(crate) key_ports: i16,
    /// The first of an address's last four bytes if it is not of the number (IPv4), else 0.
    pub(crate) first_octet: i32,
}

/// The clients' addresses follow this one; each client has 2^14 ports, from 1024 on.
pub(crate) const CLIENTS: u32 = 0x20_0000;
const PORTS_PER_CLIENT: i32 = 1 << 14;
const FIRST_PORT: i32 = 1024;

/// A bare program that is being written. In it, r6 is the context, r7 the number of the repetition,
/// r8 the address of that repetition, r9 the client's address.
pub(crate) struct Program {
    instructions: Vec<Instruction>,
    /// The positions of instructions that jump to the end of the program.
    exits: Vec<usize>,
    rotation: Rotation,
    is_xdp: bool,
}

const CALL_LOOKUP: i32 = 1;
const CALL_UPDATE: i32 = 2;
const CALL_TAIL: i32 = 12;
/// The stack offset, from r10, of the key for the map that counts repetitions.
const COUNTER_KEY: i16 = -8;

impl Program {
    /// Begins a program for tc, or for XDP, whose context has other fields: counts the repetition
    /// and computes its addresses.
    pub(crate) fn new(counter: &OwnedFd, rotation: Rotation, is_xdp: bool) -> Self {
        let mut program = Self {
            instructions: Vec::new(),
            exits: Vec::new(),
            rotation,
            is_xdp,
        };
        program.extend(&[
            Instruction(0xbf, 0x16, 0, 0),
            Instruction(0x62, 10, COUNTER_KEY, 0),
        ]);
        program.lookup(counter, COUNTER_KEY);
        program.exit_if(Instruction(0x15, 0, 0, 0));
        program.extend(&[
            Instruction(0x79, 0x07, 0, 0),
            Instruction(0xbf, 0x71, 0, 0),
            Instruction(0x07, 1, 0, 1),
            Instruction(0x7b, 0x10, 0, 0),
            // r8 = base + 1 + r7 % count, r9 = the client.
            Instruction(0xbf, 0x78, 0, 0),
            Instruction(0x97, 8, 0, rotation.count as i32),
            Instruction(0x07, 8, 0, (rotation.base + 1) as i32),
            Instruction(0xb7, 9, 0, 0),
        ]);
        if rotation.clients {
            program.extend(&[
                Instruction(0xbf, 0x79, 0, 0),
                Instruction(0x77, 9, 0, PORTS_PER_CLIENT.trailing_zeros() as i32),
            ]);
        }
        program.extend(&[Instruction(0x07, 9, 0, (CLIENTS + 1) as i32)]);
        program
    }

    /// Writes the address in `register` into four bytes at `to` + `offset`, in network order.
    fn store_address(&mut self, register: u8, at: Offsets, to: u8, offset: i16) {
        self.extend(&[
            Instruction(0xbf, register << 4 | 1, 0, 0),
            Instruction(0x47, 1, 0, at.first_octet << 24),
            Instruction(0xdc, 1, 0, 32),
            Instruction(0x63, 0x10 | to, offset, 0),
        ]);
    }

    /// Writes the client's port and the port `other`, in network order.
    fn store_ports(&mut self, other: u16, to: u8, offset: i16) {
        if self.rotation.clients {
            self.extend(&[
                Instruction(0xbf, 0x71, 0, 0),
                Instruction(0x57, 1, 0, PORTS_PER_CLIENT - 1),
                Instruction(0x07, 1, 0, FIRST_PORT),
            ]);
        } else {
            self.extend(&[Instruction(0xb7, 1, 0, 40_000)]);
        }
        // Stores both ports as one machine word, because a look-up that reads them as one word
        // would wait for two stores. The register `to` may be r2.
        let other_port = if to == 2 { 3 } else { 2 };
        self.extend(&[
            Instruction(0xdc, 1, 0, 16),
            Instruction(0xb7, other_port, 0, i32::from(other.to_be())),
            Instruction(0x67, other_port, 0, 16),
            Instruction(0x4f, other_port << 4 | 1, 0, 0),
            Instruction(0x63, 0x10 | to, offset, 0),
        ]);
    }

    /// Writes a flow's key on the stack: from the client to `port` of the repetition's address, the
    /// rest as in `key`. Returns the key's stack offset.
    pub(crate) fn key(&mut self, key: &[u8], port: u16, at: Offsets) -> i16 {
        let depth = COUNTER_KEY - key.len().next_multiple_of(8) as i16;
        for (word, offset) in key.chunks_exact(4).zip((depth..).step_by(4)) {
            let word = i32::from_ne_bytes(word.try_into().expect("chunks of four"));
            self.extend(&[Instruction(0x62, 10, offset, word)]);
        }
        self.store_address(9, at, 10, depth + at.key_src);
        self.store_address(8, at, 10, depth + at.key_dst);
        self.store_ports(port, 10, depth + at.key_ports);
        depth
    }

    /// Looks up in `map` the key at the stack offset `depth`.
    pub(crate) fn lookup(&mut self, map: &OwnedFd, depth: i16) {
        self.map(1, map);
        self.extend(&[
            Instruction(0xbf, 0xa2, 0, 0),
            Instruction(0x07, 2, 0, i32::from(depth)),
            Instruction(0x85, 0, 0, CALL_LOOKUP),
        ]);
    }

    /// Writes `size` zero bytes on the stack, below the key at `depth`. Returns their offset.
    pub(crate) fn value(&mut self, size: usize, depth: i16) -> i16 {
        let value = depth - size.next_multiple_of(8) as i16;
        for offset in (value..depth).step_by(8) {
            self.extend(&[Instruction(0x7a, 10, offset, 0)]);
        }
        value
    }

    /// Inserts the value under the key, both at stack offsets, unless the map has the key.
    pub(crate) fn insert(&mut self, map: &OwnedFd, depth: i16, value: i16) {
        const NOEXIST: i32 = 1;
        self.map(1, map);
        self.extend(&[
            Instruction(0xbf, 0xa2, 0, 0),
            Instruction(0x07, 2, 0, i32::from(depth)),
            Instruction(0xbf, 0xa3, 0, 0),
            Instruction(0x07, 3, 0, i32::from(value)),
            Instruction(0xb7, 4, 0, NOEXIST),
            Instruction(0x85, 0, 0, CALL_UPDATE),
        ]);
    }

    /// Replaces four bytes on the stack, at the offset `at`.
    pub(crate) fn store_word(&mut self, at: i16, word: i32) {
        self.extend(&[Instruction(0x62, 10, at, word)]);
    }

    /// Makes the packet one of this direction, calls slot 0 of `programs`, and ends the program.
    pub(crate) fn hand_over(
        mut self,
        programs: &OwnedFd,
        direction: Direction,
        at: Offsets,
    ) -> Vec<Instruction> {
        self.packet(at);
        match direction {
            Direction::To(port) => {
                self.store_address(9, at, 2, at.src);
                self.store_address(8, at, 2, at.dst);
                self.store_ports(port, 2, at.ports);
            }
            Direction::From(distance, port) => {
                self.extend(&[Instruction(0x07, 8, 0, distance as i32)]);
                self.store_address(8, at, 2, at.src);
                self.store_address(9, at, 2, at.dst);
                self.extend(&[
                    Instruction(0x6a, 2, at.ports, i32::from(port.to_be())),
                    Instruction(0x6a, 2, at.ports + 2, i32::from(40_000u16.to_be())),
                ]);
            }
        }
        self.tail_call(programs)
    }

    /// Makes r2 point to the packet's bytes, and resets the packet's time to live.
    fn packet(&mut self, at: Offsets) {
        // The fields `data` and `data_end`.
        let [data, data_end] = if self.is_xdp { [0, 4] } else { [76, 80] };
        self.extend(&[
            Instruction(0x61, 0x62, data, 0),
            Instruction(0x61, 0x63, data_end, 0),
            Instruction(0xbf, 0x24, 0, 0),
            Instruction(0x07, 4, 0, i32::from(at.ports) + 4),
        ]);
        // if r4 > r3
        self.exit_if(Instruction(0x2d, 0x34, 0, 0));
        // The program under test may have counted the time to live down in the last repetition.
        self.extend(&[Instruction(0x72, 2, at.hops, 64)]);
        if self.is_xdp {
            // It has also written the next hop's address; the node's own is zero.
            self.extend(&[Instruction(0x62, 2, 0, 0), Instruction(0x6a, 2, 4, 0)]);
        }
    }

    fn tail_call(mut self, programs: &OwnedFd) -> Vec<Instruction> {
        self.extend(&[Instruction(0xbf, 0x61, 0, 0)]);
        self.map(2, programs);
        self.extend(&[
            Instruction(0xb7, 3, 0, 0),
            Instruction(0x85, 0, 0, CALL_TAIL),
        ]);
        // Reached only if the call fails, which must not look like a fast program.
        const SHOT: i32 = 2;
        self.finish(SHOT)
    }

    /// Ends the program, with this verdict.
    pub(crate) fn finish(mut self, result: i32) -> Vec<Instruction> {
        let end = self.instructions.len();
        for at in self.exits {
            self.instructions[at].2 = (end - at - 1) as i16;
        }
        self.instructions
            .extend([Instruction(0xb7, 0, 0, result), Instruction(0x95, 0, 0, 0)]);
        self.instructions
    }

    fn map(&mut self, register: u8, map: &OwnedFd) {
        self.extend(&[
            Instruction(0x18, 0x10 | register, 0, map.as_raw_fd()),
            Instruction(0, 0, 0, 0),
        ]);
    }

    fn exit_if(&mut self, condition: Instruction) {
        self.exits.push(self.instructions.len());
        self.extend(&[condition]);
    }

    fn extend(&mut self, instructions: &[Instruction]) {
        self.instructions.extend_from_slice(instructions);
    }
}
