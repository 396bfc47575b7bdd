// SPDX-License-Identifier: Apache-2.0 OR MIT
//! ClientIP session affinity: the backend that all connections of a client to a service port go to.

use crate::{Addr, BackendId, ServiceId, check};

/// Key of the maps `affinity_v4` and `affinity_v6`. KUBE: one entry per client and service port;
/// all addresses and the node port of the service port share it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(C)]
pub struct AffinityKey<A> {
    #[cfg(not(feature = "next-layout"))]
    pub service: ServiceId,
    pub client: A,
    #[cfg(feature = "next-layout")]
    pub service: ServiceId,
}

/// Key of the map `affinity_pods`, which the socket hooks use for pods. A socket that connects has
/// no source address yet, so the pod's network namespace identifies the client.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(C)]
pub struct PodAffinityKey {
    pub service: ServiceId,
    /// 4 or 6, because a service has different backends in each family.
    pub family: u32,
    /// The kernel's cookie of the pod's network namespace.
    pub netns: u64,
}

/// A key of one of the affinity maps: [`AffinityKey`] or [`PodAffinityKey`].
pub trait AffinityClient {
    /// Returns what the key adds to the sum behind the check word of its [`AffinityEntry`].
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

/// Value of the affinity maps. The check word `check` covers all fields but `last_used`, because
/// the kernel may reuse an element while it is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct AffinityEntry {
    #[cfg(feature = "next-layout")]
    pub last_used: u64,
    pub check: u32,
    pub backend: BackendId,
    pub generation: u32,
    pub _pad: u32,
    /// When the client last began a connection to the service port.
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
    /// Whether this entry is that of `key`, is not torn, and its affinity has not timed out at
    /// `now`; `timeout` in seconds.
    #[inline(always)]
    pub fn holds(&self, key: &impl AffinityClient, timeout: u32, now: u64) -> bool {
        self.check == Self::check_for(key, self.backend, self.generation)
            && now.saturating_sub(self.last_used) <= timeout as u64 * 1_000_000_000
    }
}
