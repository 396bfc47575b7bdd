// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A service's change as it passes from `prepare`, which reserves what it needs, to `publish`, which
//! writes it.

use std::{fmt, io};

use ipnet::IpNet;
use proxy_common::{BackendId, Block, RecordId, ServiceId};

use super::{delta::Delta, family::Family};
use crate::plan::{BackendPlan, PortPlan};

/// Why a service could not be published.
#[derive(Debug)]
pub(super) enum Refusal {
    Full {
        map: &'static str,
        capacity: u32,
        key: &'static str,
        detail: String,
    },
    Unmapped {
        map: &'static str,
        error: io::Error,
    },
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full {
                map,
                capacity,
                key,
                detail,
            } => write!(
                f,
                "not published, the map {map} is full ({capacity} entries{detail}): raise portolan.maps.{key} in the \
                 configuration, then stop the agent, run `portolan cleanup` and start it again; until then the \
                 service keeps what it had, less the endpoints that are gone"
            ),
            Self::Unmapped { map, error } => write!(
                f,
                "not published, the map {map} cannot be mapped into memory ({error}): free memory or raise \
                 vm.max_map_count; it is tried again"
            ),
        }
    }
}

/// What becomes of a block.
#[derive(Debug)]
pub(super) enum BlockChange {
    Keep,
    Replace {
        block: Block,
        slots: Vec<u32>,
    },
    /// To a part of what it was, for want of free slots; the rest is freed.
    Shrink {
        block: Block,
        rest: [Block; 2],
    },
}

/// What to do when there is not enough room.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Want {
    /// All or nothing.
    Whole,
    /// Blocks may lack endpoints, so that those that are gone can be dropped in any case.
    WhatFits,
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
