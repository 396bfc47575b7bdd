// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads the pinned maps and returns their contents as rows for tables. In: a pin directory. Out:
//! the services, and which clients are connected to which backends. Needs no running agent and does
//! not disturb one; elements that change during the reading may be missing or old. Called by `cli`
//! and `metrics`.

mod affinity;
mod explain;
mod flows;
mod maps;
mod services;
mod traffic;

use std::{
    collections::{HashMap, HashSet},
    io,
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
};

use proxy_common::{
    FrontendKey, Port, Record, ServiceId, Settings, V4, V6,
    maps::{self as names, node_address},
    service::ServiceName,
};
use serde::Serialize;

pub use self::maps::{MapRow, fills, pinned_maps};
use crate::{
    error::DatapathError,
    maps::{
        FlowTable,
        arrays::MappedArray,
        family::Family,
        pins::{layout_dir, nothing_readable},
        tables::Table,
    },
};
pub use affinity::Affinity;
pub use explain::{
    AffineEndpoint, Asked, By, Explained, MatchedFrontend, ServiceAddress, ServingEndpoint,
};
pub use flows::{Flow, SocketRow};
use linux::{Plain, get_pinned, text};
pub use services::{BackendRow, Frontend, Share, kind_name};
pub use traffic::{Counted, CountedBackend};

const SECOND: u64 = 1_000_000_000;

/// Reads the pinned maps of one generation. Keeps the names of service ports by their ids.
pub struct Reader {
    home: PathBuf,
    names: HashMap<u32, ServicePort>,
}

/// A service port, as stored in the map of names.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ServicePort {
    /// The service's namespace and name.
    pub service: String,
    pub port_name: String,
    pub port: u16,
    pub protocol: &'static str,
}

impl ServicePort {
    fn new(name: &ServiceName) -> Self {
        Self {
            service: format!("{}/{}", text(&name.namespace), text(&name.name)),
            port_name: text(&name.port_name),
            port: name.port.host(),
            protocol: name.protocol.name(),
        }
    }
}

impl Reader {
    /// Finds the maps that are pinned below a directory, and reads the names of the services.
    pub fn open(pin_dir: &Path) -> Result<Self, DatapathError> {
        let mut reader = Self::without_names(pin_dir)?;
        for (id, name) in reader.entries::<u32, ServiceName>(names::NAMES)? {
            reader.names.insert(id, ServicePort::new(&name));
        }
        Ok(reader)
    }

    /// Like [`Self::open`], but does not read the names of the services, which takes long if there
    /// are many.
    pub fn without_names(pin_dir: &Path) -> Result<Self, DatapathError> {
        let home = layout_dir(pin_dir);
        if !home.is_dir() {
            return Err(nothing_readable(pin_dir));
        }
        Ok(Self {
            home,
            names: HashMap::new(),
        })
    }

    fn table<K: Plain, V: Plain>(&self, map: &'static str) -> Result<Table<K, V>, DatapathError> {
        let path = self.home.join(map);
        get_pinned(&path, true)
            .and_then(Table::new)
            .map_err(failed(map))
    }
    fn entries<K: Plain, V: Plain>(&self, map: &'static str) -> Result<Vec<(K, V)>, DatapathError> {
        self.table(map)?.entries().map_err(failed(map))
    }
    /// Opens an array to read it through memory, because it may have very many elements.
    fn array<T: Plain>(&self, map: &'static str) -> Result<MappedArray<T>, DatapathError> {
        // A read-only descriptor cannot be mapped; nothing is written.
        get_pinned(&self.home.join(map), false)
            .and_then(MappedArray::new)
            .map_err(failed(map))
    }
    fn flow_table<A: Family>(&self) -> Result<FlowTable<A>, DatapathError> {
        FlowTable::open(&self.home).map_err(failed(A::FLOW_SLOTS))
    }
    /// Returns the records of all frontends. Leaves out frontends that are being removed: their
    /// records have another key already.
    fn records<A: Family>(&self) -> Result<Vec<Record<A>>, DatapathError> {
        let records: Table<u32, Record<A>> = self.table(A::RECORDS)?;
        let mut found = Vec::new();
        for (key, id) in self.entries::<FrontendKey<A>, u32>(A::FRONTENDS)? {
            let record = records.lookup(&id).map_err(failed(A::RECORDS))?;
            found.extend(record.filter(|record| record.key == key));
        }
        Ok(found)
    }
    fn name(&self, service: u32) -> ServicePort {
        let unknown = || ServicePort {
            service: format!("(gone, id {service})"),
            port_name: String::new(),
            port: 0,
            protocol: "?",
        };
        self.names.get(&service).cloned().unwrap_or_else(unknown)
    }
    /// Returns how many services there are in the map of names.
    pub fn service_count(&self) -> usize {
        let names = self.names.values().map(|named| named.service.as_str());
        names.collect::<HashSet<_>>().len()
    }
    /// True if `is_it` returns true for a service in the map of names. `is_it` gets
    /// "namespace/name".
    pub fn serves(&self, is_it: impl Fn(&str) -> bool) -> bool {
        self.names.values().any(|named| is_it(&named.service))
    }

    /// Returns the text by which tables name the service port with this id: "namespace/name:port".
    fn service_port(&self, id: u32) -> String {
        if id == ServiceId::NONE.0 {
            return "(no service)".into();
        }
        let ServicePort {
            service, port_name, ..
        } = self.name(id);
        match port_name.as_str() {
            "" => service,
            name => format!("{service}:{name}"),
        }
    }

    /// Returns the node's settings, as the agent stored them last.
    pub fn settings(&self) -> Result<Settings, DatapathError> {
        let table: Table<u32, Settings> = self.table(names::SETTINGS)?;
        let found = table.lookup(&0).map_err(failed(names::SETTINGS))?;
        Ok(found.unwrap_or(Settings::EMPTY))
    }

    /// Returns the node's addresses on which node ports are served, except loopback ones, in order.
    pub fn node_port_addresses(&self) -> Result<Vec<IpAddr>, DatapathError> {
        Ok(sorted(
            self.node_port_addresses_of::<V4>()?,
            self.node_port_addresses_of::<V6>()?,
        ))
    }
    fn node_port_addresses_of<A: Family>(&self) -> Result<Vec<IpAddr>, DatapathError> {
        let addresses = self.entries::<A, u32>(A::NODE_ADDRESSES)?;
        let served = addresses
            .into_iter()
            .filter(|(_, bits)| bits & node_address::NODE_PORT != 0);
        let served = served.map(|(address, _)| -> IpAddr { address.into() });
        Ok(served.filter(|address| !address.is_loopback()).collect())
    }

    /// Returns every counter's sum over the CPUs, in the order of [`proxy_common::Counter::ALL`].
    pub fn counters(&self) -> Result<Vec<u64>, DatapathError> {
        let fd = get_pinned(&self.home.join(names::COUNTERS), true);
        fd.and_then(linux::per_cpu_sums)
            .map_err(failed(names::COUNTERS))
    }
}

fn failed(map: &'static str) -> impl Fn(io::Error) -> DatapathError {
    move |source| match source.kind() {
        io::ErrorKind::PermissionDenied => DatapathError::NoPrivilege {
            attempt: "read the pinned maps",
            source,
        },
        io::ErrorKind::NotFound => DatapathError::NoSuchMap { map },
        _ => DatapathError::of_map("read", map)(source),
    }
}

fn sorted<T: Ord>(v4: Vec<T>, v6: Vec<T>) -> Vec<T> {
    let mut rows = v4;
    rows.extend(v6);
    rows.sort();
    rows
}

fn socket(address: impl Into<IpAddr>, port: Port) -> SocketAddr {
    SocketAddr::new(address.into(), port.host())
}
