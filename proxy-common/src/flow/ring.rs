// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Rings of flow keys: they say which flows are evicted for new ones, oldest first, without a walk
//! through the table.
//!
//! A new flow's key goes into the ring of half-open connections or into that of datagrams. The key
//! of a flow that has ended goes into the closed ring. So many short connections do not shorten the
//! life of datagrams' flows, nor the other way round. When a key is overwritten, its flow is looked
//! up and removed if it may be evicted ([`FlowState::gives_way`]). So half-open and closed flows
//! can never be more than their rings have slots, whatever packets arrive, even with no agent
//! running.
//!
//! A half-open flow that is still used gets a new slot once a second ([`Ring::after`]). So one-way
//! senders, and streams that follow a single request, keep their flows, and a flood's flows are
//! evicted.

use crate::{FlowState, Protocol};

/// One of the rings of an IP family.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Ring {
    /// Connections whose client has not acknowledged the backend's answer yet.
    HalfOpen,
    /// Conversations of UDP in which the client has not sent again after an answer.
    Datagrams,
    /// Flows that have ended.
    Closed,
}

impl Ring {
    /// Number of rings of an IP family.
    pub const COUNT: u32 = 3;

    /// Returns the ring that a new flow's key is put into.
    #[inline(always)]
    pub const fn of_new(protocol: Protocol) -> Self {
        if protocol.0 == Protocol::UDP.0 {
            Self::Datagrams
        } else {
            Self::HalfOpen
        }
    }

    /// Returns the ring for flows of this state; `None` for an established flow, which is in no
    /// ring.
    #[inline(always)]
    pub const fn of(protocol: Protocol, state: FlowState) -> Option<Self> {
        if state.is_closed() {
            Some(Self::Closed)
        } else if state.gives_way() {
            Some(Self::of_new(protocol))
        } else {
            None
        }
    }

    /// Returns the ring that a flow's key is put into after a packet that has changed the flow's
    /// state from `before` to `state`. `None` unless the flow has just ended, or may be evicted and
    /// the packet is the first for a second (`was_old`).
    #[inline(always)]
    pub const fn after(
        protocol: Protocol,
        before: FlowState,
        state: FlowState,
        was_old: bool,
    ) -> Option<Self> {
        match Self::of(protocol, state) {
            Some(Self::Closed) if before.is_closed() => None,
            Some(Self::HalfOpen | Self::Datagrams) if !was_old => None,
            ring => ring,
        }
    }

    /// Returns the slot that the `n`-th key put into this ring takes in the map `rings_v4` or
    /// `rings_v6`; `size` is the number of slots of one ring. The half-open ring lies first, then
    /// that of datagrams, then the closed one.
    #[inline(always)]
    pub const fn slot(self, n: u64, size: u32) -> u32 {
        let place = if size == 0 { 0 } else { n % size as u64 };
        place as u32 + self as u32 * size
    }
}

/// A ring's write and eviction counts: an element of the map `ring_ends`, which has IPv4's rings
/// first.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct RingEnds {
    /// How many keys have been written to the ring.
    pub pushed: u64,
    /// How many of the written keys, from the oldest on, were evicted to free space in a full
    /// table.
    pub emptied: u64,
}

impl RingEnds {
    /// Returns the number of the oldest key that is still in a ring of `size` slots; None for an
    /// empty ring.
    #[inline(always)]
    pub const fn oldest(&self, size: u32) -> Option<u64> {
        let overwritten = self.pushed.saturating_sub(size as u64);
        let oldest = if self.emptied > overwritten {
            self.emptied
        } else {
            overwritten
        };
        if oldest < self.pushed {
            Some(oldest)
        } else {
            None
        }
    }
}

/// Returns the number of slots of one ring for a flow table with `flows` elements. Half-open flows
/// with all of their three entries take three eighths of the table at most. The same holds for
/// datagrams' flows and for closed flows.
pub const fn ring_size(flows: u32) -> u32 {
    if flows < 8 { 1 } else { flows / 8 }
}

/// Whether the flow of an original entry is evicted when the key in `slot` is overwritten: its
/// state allows eviction, and `slot` is its own, not that of an earlier flow with the same key.
#[inline(always)]
pub const fn is_evicted(state: FlowState, own_slot: u32, slot: u32) -> bool {
    own_slot == slot && state.gives_way()
}
