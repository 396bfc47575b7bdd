// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The agent's memory of each published service: only its ids. Everything else is read back from
//! the arrays. Used by all of `store`.

use std::sync::Arc;

use control::plan::PortPlan;
use ipnet::IpNet;
use proxy_common::{BackendId, Block, EndpointSet, Port, Protocol, RecordId, ServiceId};

/// The ids of a service.
#[derive(Default)]
pub(super) struct ServiceState {
    pub(super) ports: Vec<PortState>,
    pub(super) guards_v4: Vec<RecordId>,
    pub(super) guards_v6: Vec<RecordId>,
}

impl ServiceState {
    /// Returns the position of the existing port that a planned port continues.
    pub(super) fn position_of(&self, plan: &PortPlan) -> Option<usize> {
        let is_same = |port: &PortState| port.name == plan.name && port.protocol == plan.protocol;
        self.ports.iter().position(is_same)
    }
}

/// The ids of a service port.
pub(super) struct PortState {
    pub(super) id: ServiceId,
    pub(super) name: Arc<str>,
    pub(super) port: Port,
    pub(super) protocol: Protocol,
    /// Source ranges truncated to their networks, sorted, without duplicates.
    pub(super) source_ranges: Vec<IpNet>,
    pub(super) v4: FamilyState,
    pub(super) v6: FamilyState,
}

/// The ids of one family of a service port.
#[derive(Default)]
pub(super) struct FamilyState {
    pub(super) frontends: Vec<RecordId>,
    /// Sorted by address and port.
    pub(super) backends: Vec<BackendId>,
    pub(super) cluster: Block,
    pub(super) local: Block,
}

impl FamilyState {
    /// Returns the block for a set of endpoints.
    pub(super) fn block(&self, set: EndpointSet) -> Block {
        if set == EndpointSet::LOCAL {
            self.local
        } else {
            self.cluster
        }
    }
}

/// Returns source ranges as they are compared and stored: truncated to networks, sorted, without
/// duplicates.
pub(super) fn normal_ranges(ranges: &[IpNet]) -> Vec<IpNet> {
    let mut ranges: Vec<_> = ranges.iter().map(IpNet::trunc).collect();
    ranges.sort();
    ranges.dedup();
    ranges
}
