// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The change that turns a service in the maps into its new plan. `prepare` determines it and
//! reserves ids and slots, and `commit` writes it.

use control::plan::{BackendPlan, PortPlan};
use ipnet::IpNet;
use proxy_common::{BackendId, Block, RecordId, ServiceId};

use super::delta::Delta;
use crate::maps::family::Family;

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

/// The change of one service port.
pub(super) struct PortChange<'a> {
    pub(super) plan: &'a PortPlan,
    pub(super) id: ServiceId,
    /// The port's position in [`super::state::ServiceState::ports`]; `None` for a new port.
    pub(super) existing: Option<usize>,
    pub(super) source_ranges: Vec<IpNet>,
    pub(super) v4: FamilyChange<proxy_common::V4>,
    pub(super) v6: FamilyChange<proxy_common::V6>,
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
    pub(super) guards_v4: GuardChange<proxy_common::V4>,
    pub(super) guards_v6: GuardChange<proxy_common::V6>,
}
