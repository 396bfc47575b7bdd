// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the agent keeps in memory of each service in the maps: little more than ids. Everything
//! else is read back from the arrays. Gives generic code the IPv4 or IPv6 parts of it, and of other
//! types in `store`. Used by all of `store`.

use std::{collections::HashMap, sync::Arc};

use ipnet::IpNet;
use proxy_common::{BackendId, Block, EndpointSet, Port, Protocol, RecordId, ServiceId, V4, V6};

use super::{
    change::{Batches, FamilyBatches},
    maps::{FamilyMaps, Maps},
};
use crate::maps::family::Family;

/// The ids of a service's ports, and for each family the records (guards) that reject unserved
/// ports of its cluster IPs.
#[derive(Default)]
pub(crate) struct ServiceState {
    pub(super) ports: Vec<PortState>,
    pub(super) guards: [Vec<RecordId>; 2],
}

impl ServiceState {
    /// Returns the positions in `ports` by name and protocol. Of equal ports the first one counts.
    pub(super) fn positions(&self) -> HashMap<(&str, Protocol), usize> {
        let ports = self.ports.iter().enumerate().rev();
        ports
            .map(|(at, port)| ((&*port.name, port.protocol), at))
            .collect()
    }
}

/// Id, name and elements of a service port.
pub(crate) struct PortState {
    pub(super) id: ServiceId,
    pub(super) name: Arc<str>,
    pub(super) port: Port,
    pub(super) protocol: Protocol,
    /// Source ranges truncated to their networks, sorted, without duplicates.
    pub(super) source_ranges: Vec<IpNet>,
    pub(super) families: [FamilyState; 2],
}

/// The ids of one address family of a service port. `cluster` and `local` are the blocks of the two
/// endpoint sets.
#[derive(Default)]
pub(crate) struct FamilyState {
    pub(super) frontends: Vec<RecordId>,
    /// The backends' ids, sorted by the backends' addresses and ports.
    pub(super) backends: Vec<BackendId>,
    pub(super) cluster: Block,
    pub(super) local: Block,
}

impl FamilyState {
    pub(super) fn block(&self, set: EndpointSet) -> Block {
        if set == EndpointSet::LOCAL {
            self.local
        } else {
            self.cluster
        }
    }
}

/// Returns source ranges in the form in which they are compared and stored: truncated to their
/// networks, sorted, without duplicates.
pub(super) fn normal_ranges(ranges: &[IpNet]) -> Vec<IpNet> {
    let mut ranges: Vec<_> = ranges.iter().map(IpNet::trunc).collect();
    ranges.sort();
    ranges.dedup();
    ranges
}

/// An address family, with functions that return its part of a value.
pub(crate) trait Stored: Family {
    fn maps(maps: &Maps) -> &FamilyMaps<Self>;
    fn maps_mut(maps: &mut Maps) -> &mut FamilyMaps<Self>;
    fn batches(batches: &Batches) -> &FamilyBatches<Self>;
    fn batches_mut(batches: &mut Batches) -> &mut FamilyBatches<Self>;
}

macro_rules! stored {
    ($family:ident, $lower:ident) => {
        impl Stored for $family {
            fn maps(maps: &Maps) -> &FamilyMaps<Self> {
                &maps.$lower
            }
            fn maps_mut(maps: &mut Maps) -> &mut FamilyMaps<Self> {
                &mut maps.$lower
            }
            fn batches(batches: &Batches) -> &FamilyBatches<Self> {
                &batches.$lower
            }
            fn batches_mut(batches: &mut Batches) -> &mut FamilyBatches<Self> {
                &mut batches.$lower
            }
        }
    };
}

stored!(V4, v4);
stored!(V6, v6);
