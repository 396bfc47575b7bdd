// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the agent knows about the maps: which ids each service has. Everything else is read back from the
//! arrays themselves. Used by `adopt`, `apply`.

use std::{collections::HashMap, sync::Arc};

use ipnet::IpNet;
use proxy_common::{
    Backend, BackendId, Block, EndpointSet, FrontendKey, Port, Protocol, Record, RecordId,
    ServiceId, V4, V6, service::ServiceName,
};

use super::{
    blocks::BlockAllocator,
    commit::{FamilyRound, Round},
    ids::IdPool,
    result::Fill,
};
use crate::{
    datapath::{
        maps::{arrays::MappedArray, family::Family, tables::Table},
        sys::LpmKey,
    },
    plan::ObjectName,
};

/// One family's maps.
pub(crate) struct FamilyMaps<A: Family> {
    pub(crate) frontends: Table<FrontendKey<A>, u32>,
    pub(crate) records: MappedArray<Record<A>>,
    pub(crate) backends: MappedArray<Backend<A>>,
    pub(crate) sources: Table<LpmKey<A>, u32>,
    pub(crate) record_ids: IdPool,
    pub(crate) backend_ids: IdPool,
    /// Where each key leads.
    pub(crate) index: HashMap<FrontendKey<A>, RecordId>,
    /// Elements of `sources`.
    pub(crate) source_count: u32,
}

/// The maps that plans are published in.
pub(crate) struct Maps {
    pub(crate) v4: FamilyMaps<V4>,
    pub(crate) v6: FamilyMaps<V6>,
    pub(crate) slots: MappedArray<u32>,
    pub(crate) blocks: BlockAllocator,
    pub(crate) names: Table<u32, ServiceName>,
    pub(crate) service_ids: IdPool,
    pub(crate) last_service_id: u32,
    pub(crate) ports: MappedArray<u64>,
}

impl<A: Family> FamilyMaps<A> {
    fn fill(&self) -> [Fill; 4] {
        let fill = |map, entries, capacity| Fill {
            map,
            entries,
            capacity,
        };
        let (records, backends) = (self.records.capacity(), self.backends.capacity());
        [
            fill(
                A::FRONTENDS,
                self.index.len() as u32,
                self.frontends.capacity(),
            ),
            fill(A::RECORDS, records - self.record_ids.free(), records),
            fill(A::BACKENDS, backends - self.backend_ids.free(), backends),
            fill(A::SOURCE_RANGES, self.source_count, self.sources.capacity()),
        ]
    }
}

impl Maps {
    /// How full each is.
    pub(crate) fn fill(&self) -> Vec<Fill> {
        let capacity = self.slots.capacity();
        let slots = Fill {
            map: proxy_common::maps::SLOTS,
            entries: capacity - self.blocks.free(),
            capacity,
        };
        let families = self.v4.fill().into_iter().chain(self.v6.fill());
        families.chain([slots]).collect()
    }
}

/// A service's ids.
#[derive(Default)]
pub(crate) struct ServiceState {
    pub(crate) ports: Vec<PortState>,
    pub(crate) guards_v4: Vec<RecordId>,
    pub(crate) guards_v6: Vec<RecordId>,
}

/// A service port's ids.
pub(crate) struct PortState {
    pub(crate) id: ServiceId,
    pub(crate) name: Arc<str>,
    pub(crate) port: Port,
    pub(crate) protocol: Protocol,
    /// Truncated to their networks, ordered, each once.
    pub(crate) source_ranges: Vec<IpNet>,
    pub(crate) v4: FamilyState,
    pub(crate) v6: FamilyState,
}

/// One family's ids of a service port.
#[derive(Default)]
pub(crate) struct FamilyState {
    pub(crate) frontends: Vec<RecordId>,
    /// Ordered by address and port.
    pub(crate) backends: Vec<BackendId>,
    pub(crate) cluster: Block,
    pub(crate) local: Block,
}

impl FamilyState {
    /// The block that holds a set of endpoints.
    pub(crate) fn block(&self, set: EndpointSet) -> Block {
        if set == EndpointSet::LOCAL {
            self.local
        } else {
            self.cluster
        }
    }
}

/// A family's part of the state and the maps.
pub(crate) trait Stored: Family {
    fn maps(maps: &Maps) -> &FamilyMaps<Self>;
    fn maps_mut(maps: &mut Maps) -> &mut FamilyMaps<Self>;
    fn state(port: &PortState) -> &FamilyState;
    fn state_mut(port: &mut PortState) -> &mut FamilyState;
    fn guards(service: &ServiceState) -> &Vec<RecordId>;
    fn guards_mut(service: &mut ServiceState) -> &mut Vec<RecordId>;
    fn round(round: &Round) -> &FamilyRound<Self>;
    fn round_mut(round: &mut Round) -> &mut FamilyRound<Self>;
}

macro_rules! stored {
    ($family:ident, $lower:ident, $guards:ident) => {
        impl Stored for $family {
            fn maps(maps: &Maps) -> &FamilyMaps<Self> {
                &maps.$lower
            }
            fn maps_mut(maps: &mut Maps) -> &mut FamilyMaps<Self> {
                &mut maps.$lower
            }
            fn state(port: &PortState) -> &FamilyState {
                &port.$lower
            }
            fn state_mut(port: &mut PortState) -> &mut FamilyState {
                &mut port.$lower
            }
            fn guards(service: &ServiceState) -> &Vec<RecordId> {
                &service.$guards
            }
            fn guards_mut(service: &mut ServiceState) -> &mut Vec<RecordId> {
                &mut service.$guards
            }
            fn round(round: &Round) -> &FamilyRound<Self> {
                &round.$lower
            }
            fn round_mut(round: &mut Round) -> &mut FamilyRound<Self> {
                &mut round.$lower
            }
        }
    };
}

stored!(V4, v4, guards_v4);
stored!(V6, v6, guards_v6);

/// A text field of [`ServiceName`].
fn field(text: &str) -> [u8; 64] {
    let mut bytes = [0; 64];
    for (to, from) in bytes.iter_mut().zip(text.bytes()) {
        *to = from;
    }
    bytes
}

/// The text in a field of [`ServiceName`].
pub(crate) fn text(field: &[u8; 64]) -> String {
    let length = field.iter().position(|byte| *byte == 0).unwrap_or(64);
    String::from_utf8_lossy(&field[..length]).into_owned()
}

/// The `names` element of a service port.
pub(crate) fn service_name(
    service: &ObjectName,
    port_name: &str,
    port: Port,
    protocol: Protocol,
) -> ServiceName {
    ServiceName {
        namespace: field(&service.namespace),
        name: field(&service.name),
        port_name: field(port_name),
        port,
        protocol,
        _pad: 0,
    }
}
