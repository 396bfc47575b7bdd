// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Walks through the tables of flows and sockets, a part at a time. In: idle times and which backends are current; out:
//! idle entries removed, sockets closed whose backend has gone, and how full the flow tables are. Called by `Datapath`.

mod flows;
mod sockets;

pub(crate) use flows::{Sweeper, now, pressure_of};
pub(crate) use sockets::Sockets;

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

impl FlowCounts {
    /// Whether no flood could fill the table while nobody looks for some seconds.
    pub(crate) fn is_nearly_empty(&self) -> bool {
        self.entries < self.capacity / 16
    }
}
