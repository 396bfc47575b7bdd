// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Finds the ids that service ports and backends of old maps have in new maps. Flows, sockets and
//! affinity contain these ids, which differ between generations of maps.

use std::{collections::HashMap, path::Path};

use linux::Plain;
use proxy_common::{Backend, BackendId, Port, Protocol, ServiceId, maps, service::ServiceName};

use super::translation::{each, table};
use crate::{
    error::DatapathError,
    maps::{family::Family, tables::Table},
};

/// Id and generation in place of those of a backend that is gone. The id 0 belongs to no backend.
pub(super) const GONE: (BackendId, u32) = (BackendId(0), u32::MAX);

/// The ids of one generation's service ports and backends, with their ids in the maps of another.
#[derive(Debug, Default)]
pub(super) struct References {
    pub(super) services: Services,
    pub(super) backends: [Backends; 2],
}

/// An old generation, by its directory, whose contents are copied to the one in `target`.
pub(super) struct Old<'a> {
    pub(super) source: &'a Path,
    pub(super) target: &'a Path,
    pub(super) references: &'a References,
}

impl Old<'_> {
    pub(super) fn backends<A: Family>(&self) -> &Backends {
        &self.references.backends[A::AT]
    }
    /// Calls `visit` for each element of the old map of this name.
    pub(super) fn each<K: Plain, V: Plain>(
        &self,
        map: &'static str,
        visit: impl FnMut(K, V),
    ) -> Result<(), DatapathError> {
        each(self.source, self.target, map, visit)
    }
    pub(super) fn new_table<K: Plain, V: Plain>(
        &self,
        map: &'static str,
    ) -> Result<Table<K, V>, DatapathError> {
        table(self.target, map)
    }
}

/// The name of a service port: namespace, service, port name, protocol.
type PortName = (Vec<u8>, Vec<u8>, Vec<u8>, Protocol);

/// Key: a service port's id in the old maps. Value: its id in the new maps.
#[derive(Debug, Default)]
pub(super) struct Services(HashMap<u32, ServiceId>);

impl Services {
    /// Reads all services of both generations, whose directories these are.
    pub(super) fn read(source: &Path, target: &Path) -> Result<Self, DatapathError> {
        let mut new: HashMap<PortName, ServiceId> = HashMap::new();
        each(target, target, maps::NAMES, |id: u32, name: ServiceName| {
            new.insert(name_of(&name), ServiceId(id));
        })?;
        let mut ids = HashMap::new();
        each(source, target, maps::NAMES, |id: u32, name: ServiceName| {
            if let Some(found) = new.get(&name_of(&name)) {
                ids.insert(id, *found);
            }
        })?;
        Ok(Self(ids))
    }
    /// Returns the id in the new maps of a service port in the old ones; `None` if the service port
    /// is gone.
    pub(super) fn get(&self, id: ServiceId) -> Option<ServiceId> {
        self.0.get(&id.0).copied()
    }
}

fn name_of(name: &ServiceName) -> PortName {
    (
        name.namespace.to_vec(),
        name.name.to_vec(),
        name.port_name.to_vec(),
        name.protocol,
    )
}

/// The backends of one family. Key: a backend's id in the old maps. Value: its generation there,
/// and its id and generation in the new maps.
#[derive(Debug, Default)]
pub(super) struct Backends(HashMap<u32, (u32, (BackendId, u32))>);

impl Backends {
    /// Reads all backends of a family of both generations. Takes a second for a million.
    pub(super) fn read<A: Family>(
        source: &Path,
        target: &Path,
        services: &Services,
    ) -> Result<Self, DatapathError> {
        let mut new: HashMap<(ServiceId, A, Port), (BackendId, u32)> = HashMap::new();
        let note_new = |id: u32, backend: Backend<A>| {
            if backend.service != ServiceId::default() {
                let key = (backend.service, backend.address, backend.port);
                new.insert(key, (BackendId(id), backend.generation));
            }
        };
        each(target, target, A::BACKENDS, note_new)?;
        let mut ids = HashMap::new();
        let note_old = |id: u32, backend: Backend<A>| {
            let service = services.get(backend.service);
            let key = service.map(|service| (service, backend.address, backend.port));
            if let Some(found) = key.and_then(|key| new.get(&key)) {
                ids.insert(id, (backend.generation, *found));
            }
        };
        each(source, target, A::BACKENDS, note_old)?;
        Ok(Self(ids))
    }
    /// Returns id and generation in the new maps of a backend in the old ones; `None` if the
    /// backend is gone.
    pub(super) fn get(&self, id: BackendId, generation: u32) -> Option<(BackendId, u32)> {
        let (current, found) = self.0.get(&id.0)?;
        (*current == generation).then_some(*found)
    }
    /// Returns the id in the new maps of the backend that has this id in the old ones; `None` if it
    /// is gone.
    pub(super) fn id_of(&self, id: u32) -> Option<BackendId> {
        let (_, (found, _)) = self.0.get(&id)?;
        Some(*found)
    }
}
