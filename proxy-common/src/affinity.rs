// SPDX-License-Identifier: Apache-2.0 OR MIT
//! ClientIP session affinity: the backend that all connections of a client to a service port go to.

use crate::{Addr, BackendId, ServiceId, check};

/// Key of `affinity`. KUBE: one entry per client and service port; all addresses and the node port
/// of the service port share it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(C)]
pub struct AffinityKey<A> {
    #[cfg(not(feature = "next-layout"))]
    pub service: ServiceId,
    pub client: A,
    #[cfg(feature = "next-layout")]
    pub service: ServiceId,
}

/// Key of `affinity_pods`: a pod at the socket hooks. Its socket has no address yet, so the network
/// namespace identifies it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(C)]
pub struct PodAffinityKey {
    pub service: ServiceId,
    /// 4 or 6, because a service has different backends in each family.
    pub family: u32,
    /// The kernel's cookie of the network namespace.
    pub netns: u64,
}

/// A key of an [`AffinityEntry`].
pub trait AffinityClient {
    /// The key's part of the entry's check word.
    fn sum(&self) -> u64;
}

impl<A: Addr> AffinityClient for AffinityKey<A> {
    #[inline(always)]
    fn sum(&self) -> u64 {
        self.client
            .mix(self.client, 0x2f0b_4f01)
            .wrapping_add(check::mix(self.service.0, 0, 0x6a09_e667))
    }
}

impl AffinityClient for PodAffinityKey {
    #[inline(always)]
    fn sum(&self) -> u64 {
        check::mix(self.netns as u32, (self.netns >> 32) as u32, 0x2f0b_4f01)
            .wrapping_add(check::mix(self.service.0, self.family, 0x6a09_e667))
    }
}

/// Value of `affinity`. All but `last_used` is covered by `check` (elements are recycled under
/// readers).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct AffinityEntry {
    #[cfg(feature = "next-layout")]
    pub last_used: u64,
    pub check: u32,
    pub backend: BackendId,
    pub generation: u32,
    pub _pad: u32,
    /// When the client last began a connection.
    #[cfg(not(feature = "next-layout"))]
    pub last_used: u64,
}

impl AffinityEntry {
    #[inline(always)]
    pub fn new(key: &impl AffinityClient, backend: BackendId, generation: u32, now: u64) -> Self {
        let check = Self::check_for(key, backend, generation);
        Self {
            check,
            backend,
            generation,
            _pad: 0,
            last_used: now,
        }
    }
    #[inline(always)]
    fn check_for(key: &impl AffinityClient, backend: BackendId, generation: u32) -> u32 {
        check::fold_check(
            key.sum()
                .wrapping_add(check::mix(backend.0, generation, 0x1b87_3593)),
        )
    }
    /// Whether this entry is intact and its affinity has not timed out at `now`; `timeout` in
    /// seconds.
    #[inline(always)]
    pub fn holds(&self, key: &impl AffinityClient, timeout: u32, now: u64) -> bool {
        self.check == Self::check_for(key, self.backend, self.generation)
            && now.saturating_sub(self.last_used) <= timeout as u64 * 1_000_000_000
    }
}
