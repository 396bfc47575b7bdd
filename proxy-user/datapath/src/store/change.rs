// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A service's change. `prepare` fills it and reserves what it needs, and `commit` writes it.

use control::plan::{BackendPlan, PortPlan};
use ipnet::IpNet;
use proxy_common::{BackendId, Block, RecordId, ServiceId};

use super::delta::Delta;
use crate::maps::family::Family;

/// The change of a block.
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

/// What to reserve when a map is full.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Want {
    /// Reserve everything or nothing.
    Whole,
    /// Reserve what fits. Blocks may lack endpoints, so that a service can always lose endpoints
    /// that are gone.
    WhatFits,
}

/// How much of each map a change may fill.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Quota {
    /// All of it: for essential services, and for services that are published already or were in
    /// the maps before, so that these can always change.
    All,
    /// All but a reserve: for new services, so that a part of each map stays free.
    ButReserve,
}

impl Quota {
    /// Returns the number of elements that stay free in a map of this capacity.
    pub(super) fn reserve(self, capacity: u32) -> u32 {
        match self {
            Self::All => 0,
            Self::ButReserve => capacity / 32,
        }
    }
}

/// The change of one family of a port. `records` has one id for each of `delta.new_frontends`.
pub(super) struct FamilyChange<A: Family> {
    pub(super) delta: Delta<A>,
    pub(super) backends: Vec<(BackendId, BackendPlan<A>, bool)>,
    pub(super) records: Vec<RecordId>,
    pub(super) cluster: BlockChange,
    pub(super) local: BlockChange,
}

/// The change of one port.
pub(super) struct PortChange<'a> {
    pub(super) plan: &'a PortPlan,
    pub(super) id: ServiceId,
    /// The position in the state's ports; `None` for a new port.
    pub(super) existing: Option<usize>,
    pub(super) source_ranges: Vec<IpNet>,
    pub(super) v4: FamilyChange<proxy_common::V4>,
    pub(super) v6: FamilyChange<proxy_common::V6>,
}

/// The guarded cluster IPs of one family: `new` ones need a record.
pub(super) struct GuardChange<A> {
    pub(super) new: Vec<(A, RecordId)>,
    pub(super) kept: Vec<RecordId>,
}

/// The change of a service; everything that it needs is reserved.
pub(super) struct ServiceChange<'a> {
    pub(super) ports: Vec<PortChange<'a>>,
    pub(super) guards_v4: GuardChange<proxy_common::V4>,
    pub(super) guards_v6: GuardChange<proxy_common::V6>,
}
