// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The change that turns a service in the maps into its new plan: `prepare` determines it and
//! reserves ids and slots, `commit` writes the part of it that is in arrays, and queues elements of
//! hash maps, which `publish` writes for all services of an apply.

use control::plan::{BackendPlan, PortPlan};
use ipnet::IpNet;
use linux::LpmKey;
use proxy_common::{
    Addr, BackendId, Block, FrontendKey, Record, RecordId, ServiceId, V4, V6, service::ServiceName,
};

use super::{delta::Delta, maps::FamilyMaps};
use crate::{maps::family::Family, node::NewAddresses};

/// What happens to a block, the slots with the backends of one endpoint set.
#[derive(Debug)]
pub(super) enum BlockChange {
    Keep,
    Replace {
        block: Block,
        slots: Vec<u32>,
    },
    /// Shrinks the block to a part of itself, because no other slots are free; the rest is freed.
    Shrink {
        block: Block,
        rest: [Block; 2],
    },
}

/// What to reserve for a change if a map is nearly full.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Want {
    /// Reserve everything or nothing.
    Whole,
    /// Reserve what fits: a block may then lack endpoints. So endpoints that are gone can be
    /// removed even if no slots are free.
    WhatFits,
}

/// How much of each map a change may fill.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Quota {
    /// All of it: for essential services, and for services that are in the maps already or were in
    /// the previous maps, so that these can always change.
    All,
    /// All but a reserve: for new services, so that a part of each map stays free.
    ButReserve,
}

impl Quota {
    /// Returns how many elements must stay free in a map of this capacity.
    pub(super) fn reserve(self, capacity: u32) -> u32 {
        match self {
            Self::All => 0,
            Self::ButReserve => capacity / 32,
        }
    }
}

/// The change of one address family of a service port. `backends` has all of the plan: id, plan,
/// and true if new. `records` has one id for each of `delta.new_frontends`.
pub(super) struct FamilyChange<A: Family> {
    pub(super) delta: Delta<A>,
    pub(super) backends: Vec<(BackendId, BackendPlan<A>, bool)>,
    pub(super) records: Vec<RecordId>,
    pub(super) cluster: BlockChange,
    pub(super) local: BlockChange,
}

pub(super) struct PortChange<'a> {
    pub(super) plan: &'a PortPlan,
    pub(super) id: ServiceId,
    /// The port's position in [`super::state::ServiceState::ports`]; `None` for a new port.
    pub(super) existing: Option<usize>,
    pub(super) source_ranges: Vec<IpNet>,
    pub(super) v4: FamilyChange<V4>,
    pub(super) v6: FamilyChange<V6>,
}

/// The cluster IPs of one family whose unserved ports are rejected, by a record each. Records of
/// `new` ones must be written, `kept` ones exist.
pub(super) struct GuardChange<A> {
    pub(super) new: Vec<(A, RecordId)>,
    pub(super) kept: Vec<RecordId>,
}

/// The change of a service. All ids and slots that it needs are reserved.
pub(super) struct ServiceChange<'a> {
    pub(super) ports: Vec<PortChange<'a>>,
    pub(super) guards_v4: GuardChange<V4>,
    pub(super) guards_v6: GuardChange<V6>,
}

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
    /// Writes a new record, and queues its key of the map of frontends. `replaces` is the record of
    /// this service that the key has led to so far; `change` is the index of the service in the
    /// changes.
    pub(super) fn add_record(
        &mut self,
        maps: &FamilyMaps<A>,
        id: RecordId,
        record: &Record<A>,
        replaces: Option<RecordId>,
        change: usize,
    ) {
        let key = record.key;
        maps.records.store(id.0, record);
        self.addresses.add(record.flags.kind(), key.address);
        self.new_frontends += u32::from(!maps.index.contains_key(&key));
        self.frontends.push(NewFrontend {
            key,
            record: id,
            replaces,
            change,
        });
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
