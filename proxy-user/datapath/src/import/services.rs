// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Looks up both ends of a tracked connection in the maps: the service at its destination, and the
//! backend that it was translated to.

use std::{collections::HashMap, io, net::SocketAddr, path::Path};

use proxy_common::{
    Backend, BackendId, FrontendKey, FrontendKind, Port, Protocol, Record, RecordId, ServiceId,
    lookup::{FrontendMaps, find_record},
    maps::node_address,
};

use super::open;
use crate::maps::{family::Family, tables::Table};

/// The maps with the services of one address family. `backends` gives id and generation.
pub(super) struct Services<A: Family> {
    frontends: Table<FrontendKey<A>, u32>,
    records: Table<u32, Record<A>>,
    addresses: Table<A, u32>,
    backends: HashMap<(ServiceId, A, Port), (BackendId, u32)>,
}

impl<A: Family> Services<A> {
    pub(super) fn read(home: &Path) -> io::Result<Self> {
        let backends: Table<u32, Backend<A>> = open(home, A::BACKENDS)?;
        let all = backends.entries()?.into_iter();
        let used = all.filter(|(_, backend)| backend.service != ServiceId::default());
        let backends = used.map(|(id, backend)| {
            let key = (backend.service, backend.address, backend.port);
            (key, (BackendId(id), backend.generation))
        });
        Ok(Self {
            frontends: open(home, A::FRONTENDS)?,
            records: open(home, A::RECORDS)?,
            addresses: open(home, A::NODE_ADDRESSES)?,
            backends: backends.collect(),
        })
    }

    /// Returns the service port at a destination. `None` if no service has this address,
    /// [`ServiceId::NONE`] if it is a cluster IP that no longer has this port.
    pub(super) fn at(&self, destination: SocketAddr, protocol: Protocol) -> Option<ServiceId> {
        let address = A::of_ip(destination.ip())?;
        let port = Port::from_host(destination.port());
        let id = find_record(self, address, port, protocol)?;
        let record = self.records.lookup(&id.0).ok()??;
        Some(match record.flags.kind() {
            FrontendKind::Unserved => ServiceId::NONE,
            _ => record.service,
        })
    }
    /// Returns id and generation of a service port's backend with this address; `None` if the
    /// service port has no such backend.
    pub(super) fn backend(&self, service: ServiceId, at: SocketAddr) -> Option<(BackendId, u32)> {
        let key = (service, A::of_ip(at.ip())?, Port::from_host(at.port()));
        self.backends.get(&key).copied()
    }
}

impl<A: Family> FrontendMaps<A> for Services<A> {
    fn bits(&self, _: Port) -> u64 {
        u64::MAX
    }
    fn record(&self, key: &FrontendKey<A>) -> Option<RecordId> {
        self.frontends.lookup(key).ok()?.map(RecordId)
    }
    fn serves_node_ports(&self, address: A) -> bool {
        let flags = self.addresses.lookup(&address);
        matches!(flags, Ok(Some(flags)) if flags & node_address::NODE_PORT != 0)
    }
    fn in_service_range(&self, _: A) -> bool {
        // No need to check the ranges: only cluster IPs have the key that is looked up next.
        true
    }
}
