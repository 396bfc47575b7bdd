// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Masquerading: the packet mark's bits, and the source addresses and ports that flows leave with.

use crate::Port;

mod source;

pub use source::{MasqueradeSources, SOURCES, Source, SourcesOf};

/// The two bits of the packet mark that portolan uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Marks {
    /// Egress gives the packet the node's address as its source. Set at ingress, cleared at egress.
    pub masquerade: u32,
    /// Egress drops the packet. Set at the socket of a node process whose connection the policy
    /// drops.
    pub drop: u32,
}

impl Marks {
    /// KUBE: kube-proxy's `masqueradeBit` 14.
    pub const DEFAULT: Self = Self {
        masquerade: 1 << 14,
        drop: 1 << 15,
    };

    /// Returns marks with bit number `bit`, 0 to 31, as the masquerade bit; `None` for a larger
    /// number. If `bit` is the default drop bit, the two bits are swapped.
    pub const fn with_masquerade_bit(bit: u32) -> Option<Self> {
        let Some(masquerade) = 1_u32.checked_shl(bit) else {
            return None;
        };
        let drop = if masquerade == Self::DEFAULT.drop {
            Self::DEFAULT.masquerade
        } else {
            Self::DEFAULT.drop
        };
        Some(Self { masquerade, drop })
    }

    /// Returns the mark bit to use while another proxy's rules masquerade packets with the
    /// masquerade bit: bit 12, or bit 11 if the masquerade bit is bit 12.
    #[inline(always)]
    pub const fn beside_rules(masquerade: u32) -> u32 {
        const BIT: u32 = 1 << 12;
        if masquerade == BIT { 1 << 11 } else { BIT }
    }
}

/// How many masquerade ports are tried for a flow before the flow is refused.
pub const PORT_TRIES: u32 = 32;

/// Ports that masqueraded flows may take: two closed ranges, in host order; 0, 0 for an unused one.
/// They must not overlap the node ports. The agent leaves out `ip_local_port_range`, so that hardly
/// any socket of the node uses one of these ports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(transparent)]
pub struct PortRanges(pub [u16; 4]);

impl PortRanges {
    /// Avoids the kernel's default local ports 32768-60999 and Kubernetes' default node ports
    /// 30000-32767.
    pub const DEFAULT: Self = Self([1024, 29_999, 61_000, 65_535]);

    #[inline(always)]
    pub const fn contains(&self, port: u16) -> bool {
        let [a, b, c, d] = self.0;
        (port >= a && port <= b && b != 0) || (port >= c && port <= d && d != 0)
    }
    /// Returns the number of ports in both ranges.
    #[inline(always)]
    pub const fn count(&self) -> u32 {
        let [a, b, c, d] = self.0;
        Self::size(a, b) + Self::size(c, d)
    }
    #[inline(always)]
    const fn size(low: u16, high: u16) -> u32 {
        if high == 0 {
            0
        } else {
            high as u32 - low as u32 + 1
        }
    }
    #[inline(always)]
    const fn nth(&self, n: u32) -> u16 {
        let [a, b, c, _] = self.0;
        let first = Self::size(a, b);
        if n < first {
            a.wrapping_add(n as u16)
        } else {
            c.wrapping_add((n - first) as u16)
        }
    }
    /// Returns the two largest ranges that are left when the ports from `first` to `last` are taken
    /// out.
    pub fn without(&self, first: u16, last: u16) -> Self {
        let [a, b, c, d] = self.0;
        let mut left = [(0, 0); 4];
        for (n, (low, high)) in [(a, b), (c, d)].into_iter().enumerate() {
            if high == 0 {
                continue;
            }
            if last < low || first > high {
                left[2 * n] = (low, high);
                continue;
            }
            if first > low {
                left[2 * n] = (low, first - 1);
            }
            if last < high {
                left[2 * n + 1] = (last + 1, high);
            }
        }
        left.sort_unstable_by_key(|(low, high)| core::cmp::Reverse(Self::size(*low, *high)));
        let [(a, b), (c, d), ..] = left;
        Self([a, b, c, d])
    }
    /// Returns the `attempt`-th port to try for a flow with this hash; None if the ranges have no
    /// ports. First comes the client's own port if it is in the ranges, then others in an order
    /// that is the same for every packet of the flow, so that two racing packets choose the same.
    #[inline(always)]
    pub const fn candidate(&self, client_port: Port, hash: u32, attempt: u32) -> Option<Port> {
        let len = self.count();
        if len == 0 {
            return None;
        }
        if attempt == 0 && self.contains(client_port.host()) {
            return Some(client_port);
        }
        // A prime step spreads the tries; in the default ranges, 32 steps never reach the same port
        // twice.
        let n = hash.wrapping_add(attempt.wrapping_mul(7919)) % len;
        Some(Port::from_host(self.nth(n)))
    }
}

/// Which masquerade port in use a new flow may take over when the first candidates are all in use:
/// that of a flow that may be evicted, where the backend is likely to accept the next SYN from this
/// port.
pub mod reuse {
    use crate::FlowState;

    /// Rank of a port that must stay with its flow.
    pub const NEVER: u32 = u32::MAX;

    const MILLISECOND: u64 = 1_000_000;
    /// Linux keeps a tuple in TIME_WAIT for 60 seconds, at the side that closed first.
    const TIME_WAIT: u64 = 60_000 * MILLISECOND;
    /// Whether a TCP timestamp is later than another; `false` if one of them is unknown (0).
    #[inline(always)]
    pub const fn is_later(timestamp: u32, than: u32) -> bool {
        timestamp != 0 && than != 0 && timestamp.wrapping_sub(than).wrapping_sub(1) < 1 << 31
    }

    /// Number of ranks in one class. Within a class, the longer idle the flow, the lower its rank.
    const CLASS: u32 = 1 << 24;

    /// Returns the rank of a port by the state of the flow that uses it; the lowest is the best.
    /// `is_later`: the new SYN has a later TCP timestamp than the flow's FIN. `idle` is in
    /// nanoseconds. A backend that closed first keeps the tuple in TIME_WAIT and accepts a SYN only
    /// with a later timestamp than the last one of the flow (RFC 6191); Linux makes timestamps that
    /// are not comparable between connections. The backend of a half-open flow may wait for the
    /// acknowledgement; but a flood of half-open flows must not keep all ports.
    #[inline(always)]
    pub const fn rank(state: FlowState, is_later: bool, idle: u64) -> u32 {
        if !state.gives_way() {
            return NEVER;
        }
        let waits =
            state.has(FlowState::BACKEND_FIRST) && !state.has(FlowState::RESET) && idle < TIME_WAIT;
        let class = if !state.is_closed() {
            // A backend that has not answered the SYN may wait for the acknowledgement of an
            // earlier one, from the same port.
            3 + !state.has(FlowState::ANSWERED) as u32
        } else if !waits {
            0
        } else if is_later {
            1
        } else {
            2
        };
        let age = idle / MILLISECOND;
        let freshness = if age < CLASS as u64 - 1 {
            CLASS - 1 - age as u32
        } else {
            0
        };
        class * CLASS + freshness
    }

    /// Whether a flow of this rank has been closed for two seconds and its backend does not wait:
    /// none of its packets is in flight any more.
    #[inline(always)]
    pub const fn is_over(rank: u32) -> bool {
        const LINGERING: u32 = 2000;
        rank < CLASS - LINGERING
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn masquerade_and_drop_mark_never_share_a_bit() {
        assert_eq!(Marks::with_masquerade_bit(14), Some(Marks::DEFAULT));
        for bit in 0..32 {
            let marks = Marks::with_masquerade_bit(bit).expect("a bit of 32");
            assert_eq!(marks.masquerade, 1 << bit);
            assert_eq!(marks.masquerade & marks.drop, 0);
        }
        assert_eq!(Marks::with_masquerade_bit(32), None);
    }

    #[test]
    fn ports_are_reused_first_where_the_backend_accepts_the_next_syn() {
        use crate::FlowState;
        const SECOND: u64 = 1_000_000_000;
        let open = FlowState::ESTABLISHED;
        let ending = open.with(FlowState::CLIENT_FIN);
        let closed = ending.with(FlowState::BACKEND_FIN);
        let by_backend = closed.with(FlowState::BACKEND_FIRST);
        let rank = |state, is_later, idle| reuse::rank(state, is_later, idle * SECOND);
        for one in [open, ending.with(FlowState::FIN_ANSWERED)] {
            assert_eq!(rank(one, true, 1_000), reuse::NEVER);
        }
        let best_first = [
            rank(by_backend, false, 100_000),
            rank(by_backend, false, 60),
            rank(closed, false, 9),
            rank(closed.with(FlowState::RESET), false, 5),
            rank(by_backend.with(FlowState::RESET), false, 4),
            rank(closed, true, 1),
            rank(by_backend, true, 59),
            rank(by_backend, true, 1),
            rank(by_backend, false, 59),
            rank(by_backend, false, 0),
            rank(FlowState::ANSWERED, false, 1),
            rank(FlowState::NEW, false, 9),
        ];
        assert!(best_first.is_sorted_by(|a, b| a < b), "{best_first:?}");
        assert!(best_first[11] < reuse::NEVER);
        let over = [
            (rank(closed, false, 3), true),
            (rank(closed, false, 1), false),
            (rank(by_backend, true, 59), false),
            (rank(by_backend, false, 61), true),
            (rank(FlowState::NEW, false, 100), false),
            (reuse::NEVER, false),
        ];
        for (rank, expected) in over {
            assert_eq!(reuse::is_over(rank), expected, "{rank}");
        }
    }

    #[test]
    fn timestamps_wrap_around() {
        assert!(reuse::is_later(8, 7));
        assert!(!reuse::is_later(7, 7));
        assert!(!reuse::is_later(7, 8));
        assert!(reuse::is_later(5, u32::MAX));
        assert!(!reuse::is_later(u32::MAX, 5));
        assert!(!reuse::is_later(5, 0) && !reuse::is_later(0, u32::MAX - 5));
    }

    #[test]
    fn removing_a_port_range_keeps_the_two_largest_remaining_ranges() {
        let without = |first, last| PortRanges::DEFAULT.without(first, last).0;
        assert_eq!(without(30_000, 60_999), PortRanges::DEFAULT.0);
        assert_eq!(without(1024, 65_535), [0; 4]);
        assert_eq!(without(1024, 29_999), [61_000, 65_535, 0, 0]);
        assert_eq!(without(10_000, 65_535), [1024, 9_999, 0, 0]);
        assert_eq!(without(32_768, 61_999), [1024, 29_999, 62_000, 65_535]);
        // Of three ranges, the two largest.
        assert_eq!(without(20_000, 20_999), [1024, 19_999, 21_000, 29_999]);
        assert_eq!(without(28_000, 28_999), [1024, 27_999, 61_000, 65_535]);
        assert_eq!(PortRanges([5, 5, 0, 0]).without(5, 5).0, [0; 4]);
        assert_eq!(PortRanges([0, 0, 7, 9]).without(8, 8).count(), 2);
        let none = PortRanges([0; 4]).candidate(Port::from_host(2000), 1, 0);
        assert_eq!(none, None);
    }

    proptest! {
        #[test]
        fn every_candidate_port_lies_in_the_ranges(port: u16, hash: u32, attempt in 0..PORT_TRIES) {
            for ranges in [PortRanges::DEFAULT, PortRanges([5000, 5063, 0, 0]), PortRanges([0, 0, 7000, 7000])] {
                let candidate = ranges.candidate(Port::from_host(port), hash, attempt).expect("not empty");
                prop_assert!(ranges.contains(candidate.host()));
            }
        }
    }
}
