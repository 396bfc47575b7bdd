// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Lists the clients that have affinity to a backend. The tc programs know a client by its address,
//! the socket hooks know a pod by its network namespace.

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
};

use linux::now;
use proxy_common::{
    AffinityEntry, AffinityKey, Backend, EndpointSet, PodAffinityKey, ServiceFlags, ServiceId, V4,
    V6, maps,
};
use serde::Serialize;

use super::{Reader, SECOND, failed, socket, sorted};
use crate::{
    error::DatapathError,
    maps::{family::Family, tables::Table},
};

/// One client's affinity to a backend of a service port.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Affinity {
    pub service: String,
    /// The client's address. For a pod known to the socket hooks: its network namespace as
    /// `netns:COOKIE`.
    pub client: String,
    pub backend: Option<SocketAddr>,
    pub age_seconds: u64,
    pub port_name: String,
    /// The port number of the service; 0 if the service is not in the map of names.
    pub service_port: u16,
    pub protocol: &'static str,
    /// "holds" if the client's next connection goes to this backend, else "void" with the reason.
    pub status: &'static str,
}

impl Reader {
    /// Returns the affinity of every client, sorted.
    pub fn affinities(&self) -> Result<Vec<Affinity>, DatapathError> {
        Ok(sorted(
            self.affinities_of::<V4>()?,
            self.affinities_of::<V6>()?,
        ))
    }
    fn affinities_of<A: Family>(&self) -> Result<Vec<Affinity>, DatapathError> {
        let backends: Table<u32, Backend<A>> = self.table(A::BACKENDS)?;
        let timeouts = self.affinity_timeouts::<A>()?;
        let now = now();
        let mut rows = Vec::new();
        let holds = |service: ServiceId, holds: &dyn Fn(u32) -> bool| {
            timeouts.get(&service.0).map(|timeout| holds(*timeout))
        };
        for (key, entry) in self.entries::<AffinityKey<A>, AffinityEntry>(A::AFFINITY)? {
            let client: IpAddr = key.client.into();
            let holds = holds(key.service, &|timeout| entry.holds(&key, timeout, now));
            rows.push(self.affinity(&backends, key.service, client.to_string(), &entry, holds)?);
        }
        for (key, entry) in self.entries::<PodAffinityKey, AffinityEntry>(maps::AFFINITY_PODS)? {
            if key.family == A::VERSION {
                let client = format!("netns:{}", key.netns);
                let holds = holds(key.service, &|timeout| entry.holds(&key, timeout, now));
                rows.push(self.affinity(&backends, key.service, client, &entry, holds)?);
            }
        }
        Ok(rows)
    }
    /// Returns the row for one entry. `holds` says whether the entry is still within the service's
    /// affinity timeout; `None` if the service has no affinity.
    fn affinity<A: Family>(
        &self,
        backends: &Table<u32, Backend<A>>,
        service: ServiceId,
        client: String,
        entry: &AffinityEntry,
        holds: Option<bool>,
    ) -> Result<Affinity, DatapathError> {
        let backend = backends
            .lookup(&entry.backend.0)
            .map_err(failed(A::BACKENDS))?;
        let current = backend.filter(|backend| backend.is_current(service, entry.generation));
        let status = match (holds, current) {
            (None, _) => "void: the service is gone or has no affinity",
            (_, None) => "void: the endpoint no longer serves",
            (Some(false), _) => "void: timed out",
            (_, Some(backend)) if backend.sets == EndpointSet::NONE => "void: not selected now",
            _ => "holds",
        };
        let named = self.name(service.0);
        Ok(Affinity {
            service: named.service,
            port_name: named.port_name,
            service_port: named.port,
            protocol: named.protocol,
            client,
            backend: current.map(|backend| socket(backend.address, backend.port)),
            age_seconds: now().saturating_sub(entry.last_used) / SECOND,
            status,
        })
    }
    /// Returns the affinity timeouts in seconds of the service ports with affinity. Key: id of the
    /// service port.
    fn affinity_timeouts<A: Family>(&self) -> Result<HashMap<u32, u32>, DatapathError> {
        let records = self.records::<A>()?.into_iter();
        let with_affinity = records.filter(|record| record.flags.has(ServiceFlags::AFFINITY));
        Ok(with_affinity
            .map(|record| (record.service.0, record.affinity_timeout))
            .collect())
    }
}
