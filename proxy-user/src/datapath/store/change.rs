// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A service's change as it passes from `prepare`, which reserves what it needs, to `publish`, which
//! writes it.

use std::{fmt, io};

use ipnet::IpNet;
use proxy_common::{BackendId, Block, RecordId, ServiceId};

use super::delta::Delta;
use crate::{
    datapath::maps::family::Family,
    plan::{BackendPlan, PortPlan},
};

/// Why a service could not be published.
#[derive(Debug)]
pub(crate) enum Refusal {
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
pub(crate) enum BlockChange {
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
pub(crate) enum Want {
    /// All or nothing.
    Whole,
    /// Blocks may lack endpoints, so that those that are gone can be dropped in any case.
    WhatFits,
}

/// One family's part of a port's change. Ids in `records` go with `delta.new_frontends`.
pub(crate) struct FamilyChange<A: Family> {
    pub(crate) delta: Delta<A>,
    pub(crate) backends: Vec<(BackendId, BackendPlan<A>, bool)>,
    pub(crate) records: Vec<RecordId>,
    pub(crate) cluster: BlockChange,
    pub(crate) local: BlockChange,
}

/// One port's change.
pub(crate) struct PortChange<'a> {
    pub(crate) plan: &'a PortPlan,
    pub(crate) id: ServiceId,
    /// Position in the state's ports; `None` for a new one.
    pub(crate) existing: Option<usize>,
    pub(crate) source_ranges: Vec<IpNet>,
    pub(crate) v4: FamilyChange<proxy_common::V4>,
    pub(crate) v6: FamilyChange<proxy_common::V6>,
}

/// One family's guarded cluster IPs: those that need a record.
pub(crate) struct GuardChange<A> {
    pub(crate) new: Vec<(A, RecordId)>,
    pub(crate) kept: Vec<RecordId>,
}

/// A service's change, reserved.
pub(crate) struct ServiceChange<'a> {
    pub(crate) ports: Vec<PortChange<'a>>,
    pub(crate) guards_v4: GuardChange<proxy_common::V4>,
    pub(crate) guards_v6: GuardChange<proxy_common::V6>,
}
