// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the kernel side tells: what an apply did, how full its maps are.

use crate::plan::Warning;

/// What an apply did.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ApplyReport {
    /// Elements written to or removed from maps; 0 when everything was as planned already.
    pub written: usize,
    /// What could not be published; hand these services in again later.
    pub errors: Vec<Warning>,
    /// UDP backends have gone, to which sockets may be connected.
    pub(crate) udp_lost: bool,
}

/// How full the flow tables are, by the last complete walk.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Occupancy {
    pub v4: FlowCounts,
    pub v6: FlowCounts,
    /// Every table has been walked to its end, the next call begins anew, and there is no hurry: the flow tables are
    /// nearly empty.
    pub walked: bool,
    /// [`proxy_common::Settings::CALM`] or [`proxy_common::Settings::REFUSING`].
    pub pressure: u32,
}

/// One family's flow table.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FlowCounts {
    pub capacity: u32,
    pub entries: u32,
    /// Flows, that is original entries.
    pub flows: u32,
    /// Entries that belong to flows nobody has answered.
    pub unanswered: u32,
    /// Flows (and orphaned entries) that this call removed.
    pub removed: u32,
}

/// How full a map is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fill {
    pub map: &'static str,
    pub entries: u32,
    pub capacity: u32,
}

impl FlowCounts {
    /// Whether no flood could fill the table while nobody looks for some seconds.
    pub(super) fn is_nearly_empty(&self) -> bool {
        self.entries < self.capacity / 16
    }
}
