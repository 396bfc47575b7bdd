// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A service's change as it passes from `prepare`, which reserves what it needs, to `commit`, which
//! writes it.

use control::plan::{BackendPlan, PortPlan};
use ipnet::IpNet;
use proxy_common::{BackendId, Block, RecordId, ServiceId};

use super::delta::Delta;
use crate::maps::family::Family;

/// How a block changes.
#[derive(Debug)]
pub(super) enum BlockChange {
    Keep,
    Replace {
        block: Block,
        slots: Vec<u32>,
    },
    /// To a part of itself, because no other slots are free; the rest is freed.
    Shrink {
        block: Block,
        rest: [Block; 2],
    },
}

/// What to reserve when a map is full.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Want {
    /// All or nothing.
    Whole,
    /// Blocks may lack endpoints, so that a service can always lose those that are gone.
    WhatFits,
}

/// How much of each map a change may fill.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Quota {
    /// For services that are published already or were in the maps before, so that they can always
    /// change, and for essential ones.
    All,
    /// For new services: a part of each map stays free.
    ButReserve,
}

impl Quota {
    /// The number of elements that stay free in a map of this capacity.
    pub(super) fn reserve(self, capacity: u32) -> u32 {
        match self {
            Self::All => 0,
            Self::ButReserve => capacity / 32,
        }
    }
}

/// One family's part of a port's change. Ids in `records` go with `delta.new_frontends`.
pub(super) struct FamilyChange<A: Family> {
    pub(super) delta: Delta<A>,
    pub(super) backends: Vec<(BackendId, BackendPlan<A>, bool)>,
    pub(super) records: Vec<RecordId>,
    pub(super) cluster: BlockChange,
    pub(super) local: BlockChange,
}

/// One port's change.
pub(super) struct PortChange<'a> {
    pub(super) plan: &'a PortPlan,
    pub(super) id: ServiceId,
    /// Position in the state's ports; `None` for a new one.
    pub(super) existing: Option<usize>,
    pub(super) source_ranges: Vec<IpNet>,
    pub(super) v4: FamilyChange<proxy_common::V4>,
    pub(super) v6: FamilyChange<proxy_common::V6>,
}

/// One family's guarded cluster IPs: those that need a record.
pub(super) struct GuardChange<A> {
    pub(super) new: Vec<(A, RecordId)>,
    pub(super) kept: Vec<RecordId>,
}

/// A service's change, reserved.
pub(super) struct ServiceChange<'a> {
    pub(super) ports: Vec<PortChange<'a>>,
    pub(super) guards_v4: GuardChange<proxy_common::V4>,
    pub(super) guards_v6: GuardChange<proxy_common::V6>,
}
