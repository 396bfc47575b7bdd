// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The part of an apply that is written in batches, collected over all services. Filled by
//! `commit`, written by `publish`.

use linux::LpmKey;
use proxy_common::{
    Addr, BackendId, Block, FrontendKey, RecordId, ServiceId, V4, V6, service::ServiceName,
};

use super::maps::FamilyMaps;
use crate::{maps::family::Family, node::NewAddresses};

/// A frontend to publish.
pub(super) struct NewFrontend<A> {
    pub(super) key: FrontendKey<A>,
    pub(super) record: RecordId,
    pub(super) replaces: Option<RecordId>,
    /// The position of the service in the changes.
    pub(super) change: usize,
}

/// A source range to publish.
pub(super) struct NewSource<A> {
    pub(super) key: LpmKey<A>,
    pub(super) change: usize,
}

/// The batches of one family.
pub(super) struct FamilyBatches<A: Addr> {
    pub(super) frontends: Vec<NewFrontend<A>>,
    pub(super) removed: Vec<(FrontendKey<A>, RecordId)>,
    pub(super) sources: Vec<NewSource<A>>,
    pub(super) removed_sources: Vec<LpmKey<A>>,
    pub(super) gone_backends: Vec<BackendId>,
    /// Addresses of new frontends, which the ranges in the settings must contain.
    pub(super) addresses: NewAddresses<A>,
    /// The number of keys of `frontends` that are not in the map yet.
    pub(super) new_frontends: u32,
}

impl<A: Addr> Default for FamilyBatches<A> {
    fn default() -> Self {
        Self {
            frontends: Vec::new(),
            removed: Vec::new(),
            sources: Vec::new(),
            removed_sources: Vec::new(),
            gone_backends: Vec::new(),
            addresses: NewAddresses::default(),
            new_frontends: 0,
        }
    }
}

impl<A: Family> FamilyBatches<A> {
    /// Queues a key that leads to a new record. `replaces` is the service's record that the key
    /// leads to now; `change` is the position of the service in the changes.
    pub(super) fn replace_record(
        &mut self,
        maps: &FamilyMaps<A>,
        key: FrontendKey<A>,
        record: RecordId,
        replaces: Option<RecordId>,
        change: usize,
    ) {
        self.new_frontends += u32::from(!maps.index.contains_key(&key));
        self.frontends.push(NewFrontend {
            key,
            record,
            replaces,
            change,
        });
    }
    /// Returns the number of source ranges that are not in the map yet.
    pub(super) fn new_sources(&self) -> u32 {
        self.sources.len() as u32
    }
}

/// The batches of one apply.
#[derive(Default)]
pub(super) struct Batches {
    pub(super) v4: FamilyBatches<V4>,
    pub(super) v6: FamilyBatches<V6>,
    /// The id and element of `names`, and the position of the service in the changes.
    pub(super) names: Vec<(u32, ServiceName, usize)>,
    pub(super) removed_services: Vec<ServiceId>,
    pub(super) freed_blocks: Vec<Block>,
    /// The number of elements that `commit` has written already.
    pub(super) written: usize,
    /// True if UDP backends are gone.
    pub(super) udp_lost: bool,
}
