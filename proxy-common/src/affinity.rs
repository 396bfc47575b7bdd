// SPDX-License-Identifier: Apache-2.0 OR MIT
//! ClientIP session affinity: which backend a client of a service port is held to.

use crate::{Addr, BackendId, ServiceId, layout};

/// Key of `affinity`. KUBE: per client and service port, shared by all its addresses and node port.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(C)]
pub struct AffinityKey<A> {
    pub service: ServiceId,
    pub client: A,
}

/// Value of `affinity`. All but `last_used` is covered by `check` (elements are recycled under readers).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct AffinityEntry {
    pub check: u32,
    pub backend: BackendId,
    pub generation: u32,
    pub _pad: u32,
    /// When the client last began a connection.
    pub last_used: u64,
}

impl AffinityEntry {
    #[inline(always)]
    pub fn new<A: Addr>(
        key: &AffinityKey<A>,
        backend: BackendId,
        generation: u32,
        now: u64,
    ) -> Self {
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
    fn check_for<A: Addr>(key: &AffinityKey<A>, backend: BackendId, generation: u32) -> u32 {
        layout::fold_check(
            key.client
                .mix(key.client, 0x2f0b_4f01)
                .wrapping_add(layout::mix(backend.0, generation, 0x1b87_3593))
                .wrapping_add(layout::mix(key.service.0, 0, 0x6a09_e667)),
        )
    }
    /// Whether this entry is whole and still holds its client at `now`; `timeout` in seconds.
    #[inline(always)]
    pub fn holds<A: Addr>(&self, key: &AffinityKey<A>, timeout: u32, now: u64) -> bool {
        self.check == Self::check_for(key, self.backend, self.generation)
            && now.saturating_sub(self.last_used) <= timeout as u64 * 1_000_000_000
    }
}
