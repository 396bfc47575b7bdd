// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! What a part of the packet path leaves to be done by the entry point, because the work would not
//! fit on the stack below that part.

use proxy_common::Counter;

use crate::count::Outcome;

/// What is left to do with the packet in the workspace. An entry point matches on it, so that no
/// step can be forgotten.
pub enum Next {
    /// Nothing is left to do: this is the packet's outcome.
    Done(Outcome),
    /// The packet belongs to no flow: `begin` decides about it.
    Begin,
    /// The packet may begin a direct conversation with a backend: `direct` decides about it.
    Direct,
    /// Ingress has marked the packet: `egress::marked` decides about it.
    Marked,
    /// The packet may have the tuple of a masqueraded flow: `egress::own` decides about it.
    Own,
    /// The packet gets an outer header: `carry` puts it on.
    Carry,
    /// The packet goes to the node that the client met: `restore` sends it there.
    Back,
    /// The packet has a genuine outer header: `restore` takes it off.
    Restore,
    /// `reject` tells the sender that the packet is too large; with `mtu` bytes it would not be.
    TooLarge { mtu: u32 },
    /// `redirect` sends the packet on. If `first`, by the entry of the flow that begins with the
    /// packet, else by the entry that was found. `counter` is for a packet that goes through the
    /// stack.
    Send { first: bool, counter: u32 },
    /// `reject` answers the packet: with a TCP reset if `reset`, else with an ICMP port
    /// unreachable. `counter` says why.
    Reject { reset: bool, counter: u32 },
}

/// A [`Next`] in one word, which subprograms can return: the upper half is an action of tc's or one
/// of the numbers below, the lower half a counter.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Step(u32);

const BEGIN: u32 = 0x200;
const DIRECT: u32 = 0x201;
const MARKED: u32 = 0x202;
const OWN: u32 = 0x203;
const SEND: u32 = 0x204;
const SEND_FIRST: u32 = 0x205;
const RESET: u32 = 0x206;
const UNREACHABLE: u32 = 0x207;
const CARRY: u32 = 0x208;
const TOO_LARGE: u32 = 0x209;
const BACK: u32 = 0x20a;
const RESTORE: u32 = 0x20b;

impl Step {
    pub const BEGIN: Self = Self::new(BEGIN, Counter::Untouched);
    pub const DIRECT: Self = Self::new(DIRECT, Counter::Untouched);
    pub const MARKED: Self = Self::new(MARKED, Counter::Untouched);
    pub const OWN: Self = Self::new(OWN, Counter::Untouched);
    pub const BACK: Self = Self::new(BACK, Counter::Untouched);
    pub const RESTORE: Self = Self::new(RESTORE, Counter::Untouched);
    pub const CARRY: Self = Self::new(CARRY, Counter::Untouched);

    #[inline(always)]
    const fn new(number: u32, counter: Counter) -> Self {
        Self(number << 16 | counter as u32)
    }
    /// See [`Next::Send`].
    #[inline(always)]
    pub const fn send(first: bool, counter: Counter) -> Self {
        Self::new(if first { SEND_FIRST } else { SEND }, counter)
    }
    /// See [`Next::Reject`].
    #[inline(always)]
    pub const fn reject(reset: bool, counter: Counter) -> Self {
        Self::new(if reset { RESET } else { UNREACHABLE }, counter)
    }
    /// See [`Next::TooLarge`].
    #[inline(always)]
    pub const fn too_large(mtu: u32) -> Self {
        Self(TOO_LARGE << 16 | mtu & 0xffff)
    }
    /// The step of a packet that concerns no service: nothing is left to do.
    #[inline(always)]
    pub const fn untouched() -> Self {
        Self(Outcome::pass(Counter::Untouched).word())
    }
    /// Returns the step as one word, for an exported subprogram.
    #[inline(always)]
    pub const fn word(self) -> u32 {
        self.0
    }
    #[inline(always)]
    pub const fn from_word(word: u32) -> Self {
        Self(word)
    }
    #[inline(always)]
    pub const fn next(self) -> Next {
        let counter = self.0 & 0xffff;
        match self.0 >> 16 {
            BEGIN => Next::Begin,
            DIRECT => Next::Direct,
            MARKED => Next::Marked,
            OWN => Next::Own,
            CARRY => Next::Carry,
            BACK => Next::Back,
            RESTORE => Next::Restore,
            TOO_LARGE => Next::TooLarge { mtu: counter },
            number @ (SEND | SEND_FIRST) => Next::Send {
                first: number == SEND_FIRST,
                counter,
            },
            number @ (RESET | UNREACHABLE) => Next::Reject {
                reset: number == RESET,
                counter,
            },
            _ => Next::Done(Outcome::from_word(self.0)),
        }
    }
}

impl From<Outcome> for Step {
    #[inline(always)]
    fn from(outcome: Outcome) -> Self {
        Self(outcome.word())
    }
}
