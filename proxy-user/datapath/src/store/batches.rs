// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The elements of hash maps that one call of `Store::apply` writes and removes, collected over all
//! services. Filled by `commit`, written by `publish`.

use linux::LpmKey;
use proxy_common::{
    Addr, BackendId, Block, FrontendKey, RecordId, ServiceId, V4, V6, service::ServiceName,
};

use super::maps::FamilyMaps;
use crate::{maps::family::Family, node::NewAddresses};

/// An element to write into the map of frontends: its key will lead to `record`, and leads to
/// `replaces` so far.
pub(super) struct NewFrontend<A> {
    pub(super) key: FrontendKey<A>,
    pub(super) record: RecordId,
    pub(super) replaces: Option<RecordId>,
    /// The index of the frontend's service in the changes of the apply.
    pub(super) change: usize,
}

/// A source range to write into the map of source ranges. `change` is the index of its service in
/// the changes of the apply.
pub(super) struct NewSource<A> {
    pub(super) key: LpmKey<A>,
    pub(super) change: usize,
}

/// The elements of one address family to write and remove.
#[derive(Default)]
pub(crate) struct FamilyBatches<A: Addr> {
    pub(super) frontends: Vec<NewFrontend<A>>,
    pub(super) removed: Vec<(FrontendKey<A>, RecordId)>,
    pub(super) sources: Vec<NewSource<A>>,
    pub(super) removed_sources: Vec<LpmKey<A>>,
    pub(super) gone_backends: Vec<BackendId>,
    /// Addresses of new frontends: the address ranges in the settings must contain them.
    pub(super) addresses: NewAddresses<A>,
    /// How many keys of `frontends` are not in the map of frontends yet.
    pub(super) new_frontends: u32,
}

impl<A: Family> FamilyBatches<A> {
    /// Queues a key of the map of frontends that will lead to a new record. `replaces` is the
    /// record of this service that the key has led to so far; `change` is the index of the service
    /// in the changes.
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
    /// Returns the number of queued source ranges: none of them is in the map yet.
    pub(super) fn new_sources(&self) -> u32 {
        self.sources.len() as u32
    }
}

/// The elements that one call of `Store::apply` writes and removes.
#[derive(Default)]
pub(crate) struct Batches {
    pub(super) v4: FamilyBatches<V4>,
    pub(super) v6: FamilyBatches<V6>,
    /// New elements of the map `names`: key (the service port's id), value, and the index in the
    /// apply's changes of the service that they belong to.
    pub(super) names: Vec<(u32, ServiceName, usize)>,
    pub(super) removed_services: Vec<ServiceId>,
    pub(super) freed_blocks: Vec<Block>,
    /// How many elements of arrays `commit` has written already.
    pub(super) written: usize,
    /// True if node processes may have UDP sockets that must be closed: a UDP service has lost
    /// backends or frontends, or has backends again after having none.
    pub(super) udp_lost: bool,
}
