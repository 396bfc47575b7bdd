// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What `portolan trace` sees of a packet or a socket call: before and after our program ran, with the outcome. The tracing programs
//! fill an [`Event`]; `filter` says whether it is wanted; the command line shows it.

pub mod filter;
pub mod head;
pub mod rate;

pub use filter::Filter;
pub use head::Tuple;

use crate::{Counter, Port, V6};

/// Bytes of a packet that an event carries at most. A power of two.
pub const HEAD: usize = 256;

/// Where one of our programs runs.
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
    Bind = 7,
}

impl Hook {
    pub const ALL: [Self; 8] = [
        Self::Ingress,
        Self::Egress,
        Self::Loopback,
        Self::Connect,
        Self::Send,
        Self::Receive,
        Self::PeerName,
        Self::Bind,
    ];
    /// Whether a process calls it.
    #[inline(always)]
    pub const fn is_socket(self) -> bool {
        self as u8 >= Self::Connect as u8
    }
    /// As filters and lines name it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ingress => "ingress",
            Self::Egress => "egress",
            Self::Loopback => "loopback",
            Self::Connect => "connect",
            Self::Send => "sendmsg",
            Self::Receive => "recvmsg",
            Self::PeerName => "getpeername",
            Self::Bind => "bind",
        }
    }
}

/// What a traced program is, and where the kernel keeps what is read: offsets of members in bytes, from the kernel's own types.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct Target {
    /// A [`Hook`].
    pub hook: u32,
    /// 1 if its packets begin with an Ethernet header.
    pub link_layer: u32,
    /// Of `struct sk_buff`.
    pub skb_len: u32,
    pub skb_data_len: u32,
    pub skb_data: u32,
    pub skb_dev: u32,
    pub skb_mark: u32,
    /// Of `struct net_device`.
    pub dev_ifindex: u32,
    /// Of `struct bpf_sock_addr_kern`.
    pub call_sock: u32,
    pub call_uaddr: u32,
    /// Of `struct sock`.
    pub sock_cookie: u32,
    pub sock_protocol: u32,
    pub sock_source_v4: u32,
    pub sock_source_v6: u32,
    pub sock_port: u32,
    pub sock_family: u32,
}

/// An address and port, or (port and protocol 0) an address: the key of the map of endpoints that a filter names.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(C)]
pub struct Named {
    pub address: V6,
    pub port: Port,
    pub protocol: u8,
    pub _pad: u8,
}

/// What is known of a packet or call besides its bytes.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Event {
    /// Nanoseconds of the monotonic clock.
    pub time: u64,
    /// A socket's, of a call.
    pub cookie: u64,
    /// Of the calling process.
    pub cgroup: u64,
    pub before: Tuple,
    pub after: Tuple,
    /// Bits of the named sets that the ends are in: source and destination before, source and destination after.
    pub sets: [u32; 4],
    /// A [`Counter`], or [`Event::UNCOUNTED`].
    pub outcome: u32,
    /// Index of the packet's interface.
    pub interface: u32,
    pub mark_before: u32,
    pub mark_after: u32,
    /// Of the whole packet, in bytes.
    pub length_before: u32,
    pub length_after: u32,
    /// What the program returned.
    pub action: i32,
    /// Of a call.
    pub process: u32,
    /// The filter's memory.
    pub bits: u32,
    /// How many bytes of each head are there.
    pub head_before: u16,
    pub head_after: u16,
    /// A [`Hook`].
    pub hook: u8,
    pub flags: u8,
    pub _pad: u16,
    pub _pad2: u32,
    /// The calling process's name.
    pub command: [u8; 16],
    pub bytes_before: [u8; HEAD],
    pub bytes_after: [u8; HEAD],
}

impl Event {
    /// The program has counted nothing: no service is concerned.
    pub const UNCOUNTED: u32 = u32::MAX;
    /// Another program has counted at the same moment on the same CPU: the outcome is the likelier of several.
    pub const AMBIGUOUS: u8 = 1;
    /// The packet begins with an Ethernet header.
    pub const LINK_LAYER: u8 = 2;

    /// The outcome; a program that counts nothing leaves things untouched.
    pub fn counter(&self) -> Counter {
        let counted = Counter::ALL.get(self.outcome as usize).copied();
        counted.unwrap_or(if self.hook >= Hook::Connect as u8 {
            Counter::SocketUntouched
        } else {
            Counter::Untouched
        })
    }
}

/// What events were lost to: index of the per-CPU array `lost`.
pub mod lost {
    /// The rate limit.
    pub const RATE: u32 = 0;
    /// A full ring buffer: the reader is too slow.
    pub const RING: u32 = 1;
    /// More calls at once than there is room for.
    pub const CALLS: u32 = 2;
    pub const COUNT: u32 = 3;
}

/// Counters before a program ran. Only the lower halves: no program counts four thousand millions in one run.
pub type Counts = [u32; Counter::CAPACITY as usize];

/// Which counter a socket call has counted, if `changed` (bit n: counter n) names several because something else has run meanwhile:
/// those that fit what has become of the call. The second value says whether there is still a choice.
#[inline(always)]
pub const fn outcome_of_call(changed: u64, failed: bool, translated: bool) -> (u32, bool) {
    let fitting = changed & mask_of(failed, translated);
    let fitting = if fitting == 0 { changed } else { fitting };
    if fitting == 0 {
        return (Event::UNCOUNTED, false);
    }
    (first(fitting), fitting & (fitting - 1) != 0)
}

/// The place of the lowest bit. A loop: the processor of the kernel programs has no instruction for it, and a table would be a map.
#[inline(always)]
const fn first(bits: u64) -> u32 {
    let mut place = 0;
    while place < 63 && bits >> place & 1 == 0 {
        place += 1;
    }
    place
}

/// Outcomes that a call may have which failed or not, and whose address was replaced or not.
#[inline(always)]
const fn mask_of(failed: bool, translated: bool) -> u64 {
    const fn bit(counter: Counter) -> u64 {
        1 << counter as u32
    }
    const TRANSLATED: u64 = bit(Counter::SocketTranslated)
        | bit(Counter::SocketRestored)
        | bit(Counter::SocketTableFull);
    const REFUSED: u64 = bit(Counter::RejectedNoEndpoint)
        | bit(Counter::RejectedUnserved)
        | bit(Counter::BindRefused)
        | DROPPED;
    const DROPPED: u64 = bit(Counter::DroppedNoLocalEndpoint)
        | bit(Counter::DroppedSource)
        | bit(Counter::DroppedUnallocated)
        | bit(Counter::DroppedInconsistent);
    match (failed, translated) {
        (true, _) => REFUSED,
        (false, true) => TRANSLATED,
        (false, false) => DROPPED | bit(Counter::SocketUntouched) | bit(Counter::SocketTableFull),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_hook_is_at_its_number() {
        for (number, hook) in Hook::ALL.into_iter().enumerate() {
            assert_eq!(hook as usize, number);
        }
    }

    #[test]
    fn of_several_counters_the_one_that_fits_the_call_is_its_outcome() {
        let bits =
            |counters: &[Counter]| counters.iter().fold(0, |all, one| all | 1 << *one as u32);
        let cases: [(&[Counter], bool, bool, u32, bool); 6] = [
            (&[], false, false, Event::UNCOUNTED, false),
            (
                &[Counter::SocketUntouched],
                false,
                false,
                Counter::SocketUntouched as u32,
                false,
            ),
            (
                &[Counter::ForwardedHit, Counter::SocketTranslated],
                false,
                true,
                Counter::SocketTranslated as u32,
                false,
            ),
            (
                &[Counter::RejectedNoEndpoint, Counter::SocketUntouched],
                true,
                false,
                Counter::RejectedNoEndpoint as u32,
                false,
            ),
            (
                &[Counter::RejectedNoEndpoint, Counter::RejectedUnserved],
                true,
                false,
                Counter::RejectedNoEndpoint as u32,
                true,
            ),
            // One that nobody thought of is told all the same.
            (
                &[Counter::EchoAnswered],
                true,
                false,
                Counter::EchoAnswered as u32,
                false,
            ),
        ];
        for (changed, failed, translated, outcome, ambiguous) in cases {
            let found = outcome_of_call(bits(changed), failed, translated);
            assert_eq!(found, (outcome, ambiguous), "{changed:?}");
        }
    }
}
