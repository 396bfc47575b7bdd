// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What `portolan trace` reports of a packet or a socket call: addresses and ports before and after
//! translation, and the outcome. The kernel programs fill in an [`Event`]; `filter` says whether it
//! is wanted; the command line shows it.

pub mod call;
pub mod filter;
pub mod follow;
pub mod head;
pub mod rate;

pub use filter::Filter;
pub use head::Tuple;

use crate::Counter;

/// Maximum number of a packet's bytes that are read for an event. A power of two.
pub const HEAD: usize = 256;

/// The hooks whose packets and socket calls can be traced.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Hook {
    Ingress = 0,
    Egress = 1,
    /// Egress of the loopback device.
    Loopback = 2,
    Connect = 3,
    Send = 4,
    Receive = 5,
    PeerName = 6,
}

impl Hook {
    pub const ALL: [Self; 7] = [
        Self::Ingress,
        Self::Egress,
        Self::Loopback,
        Self::Connect,
        Self::Send,
        Self::Receive,
        Self::PeerName,
    ];
    /// Whether the hook is run by a process's system call.
    #[inline(always)]
    pub const fn is_socket(self) -> bool {
        self as u8 >= Self::Connect as u8
    }
    /// The hook's name in lines of output.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ingress => "ingress",
            Self::Egress => "egress",
            Self::Loopback => "loopback",
            Self::Connect => "connect",
            Self::Send => "sendmsg",
            Self::Receive => "recvmsg",
            Self::PeerName => "getpeername",
        }
    }
}

/// What is reported of one packet or socket call.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Event {
    /// Nanoseconds of the monotonic clock.
    pub time: u64,
    /// Only of a socket call: the socket's cookie.
    pub cookie: u64,
    pub before: Tuple,
    pub after: Tuple,
    /// The outcome: the number of a [`Counter`].
    pub outcome: u32,
    /// Ids of the service port and of the backend, where a flow or a socket's entry names them;
    /// else 0.
    pub service: u32,
    pub backend: u32,
    /// Index of the packet's interface.
    pub interface: u32,
    /// Length of the complete packet, in bytes.
    pub length: u32,
    /// Of a socket call: what it returns so far, 0 or an error below 0. Of a packet at ingress: how
    /// it goes on, [`Self::PAST_THE_STACK`], [`Self::ASKS_THE_STACK`], or 0 if neither is true.
    pub result: i32,
    /// Only of a socket call: the process's id.
    pub process: u32,
    /// Scratch memory of the parser.
    pub work: u32,
    /// How many of the packet's first bytes the program has read.
    pub head: u16,
    /// The hook: the number of a [`Hook`].
    pub hook: u8,
    pub _pad: [u8; 5],
    /// Only of a socket call: the cookie of the socket's network namespace.
    pub namespace: u64,
    /// Only of a socket call: the name of the calling process.
    pub command: [u8; 16],
}

/// A program's space for the event of a packet, and for the packet's first bytes as it has left
/// them.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct PacketEvent {
    pub event: Event,
    pub bytes: [u8; HEAD],
}

impl Event {
    /// Value of `result`: the packet leaves past the node's stack.
    pub const PAST_THE_STACK: i32 = 1;
    /// Value of `result`: the packet takes the stack; if it comes out unchanged, packets that
    /// follow in its direction leave past the stack.
    pub const ASKS_THE_STACK: i32 = 2;
    // SAFETY: plain numbers, of which 0 is a valid value.
    pub const EMPTY: Self = unsafe { core::mem::zeroed() };

    /// Returns the outcome as a counter; `Untouched` if no counter has the number.
    pub fn counter(&self) -> Counter {
        let counted = Counter::ALL.get(self.outcome as usize).copied();
        counted.unwrap_or(Counter::Untouched)
    }
}

/// Why wanted events were lost: indexes into the per-CPU array `trace_lost`.
pub mod lost {
    /// The rate limit was exceeded.
    pub const RATE: u32 = 0;
    /// No reader took the events.
    pub const UNREAD: u32 = 1;
    pub const COUNT: u32 = 2;
}

/// How long the programs keep reporting after the last sign of life of `portolan trace`, in
/// nanoseconds.
pub const PATIENCE: u64 = 3_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hooks_are_listed_in_the_order_of_their_numbers() {
        for (number, hook) in Hook::ALL.into_iter().enumerate() {
            assert_eq!(hook as usize, number);
        }
    }
}
