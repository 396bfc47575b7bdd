// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads the pinned maps for the commands: no agent has to run, and one that does is not disturbed. What
//! changes while it is read may be missing or be there in its old form. Called by `cli`.

mod sockets;

use std::{
    collections::HashMap,
    io,
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
};

use proxy_common::{
    AffinityEntry, AffinityKey, Backend, EndpointSet, FlowEntry, FlowKey, FlowKind, FrontendKey,
    FrontendKind, Port, Record, ServiceFlags, ServiceId, V4, V6, maps, service::ServiceName,
};
use serde::Serialize;

use crate::datapath::{
    error::DatapathError,
    maps::{
        family::Family,
        pins::{layout_dir, map_path},
        tables::Table,
    },
    store::text,
    sweep::now,
    sys::{self, Plain, get_pinned},
};

pub use self::sockets::SocketRow;

const SECOND: u64 = 1_000_000_000;

/// One address and port that clients can hit.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Frontend {
    /// Namespace and name.
    pub service: String,
    pub port_name: String,
    pub kind: &'static str,
    pub ip_family: &'static str,
    /// Absent for a node port, which every node-port address serves.
    pub address: Option<IpAddr>,
    /// 0 stands for every port that the cluster IP does not serve.
    pub port: u16,
    pub protocol: &'static str,
    /// Endpoints that pods and this node's processes are spread over.
    pub internal_endpoints: u32,
    /// Endpoints that all others are spread over.
    pub external_endpoints: u32,
    pub policies: Vec<String>,
    pub service_id: u32,
}

/// One endpoint of a service port.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BackendRow {
    pub service: String,
    pub port_name: String,
    pub address: SocketAddr,
    /// `cluster`, `local`: which policies select it.
    pub sets: Vec<&'static str>,
    pub generation: u32,
    pub backend_id: u32,
}

/// One flow, that is an original entry and what belongs to it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Flow {
    pub service: String,
    pub protocol: &'static str,
    pub client: SocketAddr,
    pub frontend: SocketAddr,
    pub backend: SocketAddr,
    /// The client's source port as the backend sees it, where it had to be translated.
    pub translated_port: Option<u16>,
    /// The source that the backend sees, once a masqueraded flow has left.
    pub masquerade: Option<SocketAddr>,
    pub masqueraded: bool,
    pub state: &'static str,
    pub idle_seconds: u64,
}

/// Which backend a client is held to.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Affinity {
    pub service: String,
    /// An address; for a pod at the socket hooks its network namespace, as `netns:COOKIE`.
    pub client: String,
    pub backend: Option<SocketAddr>,
    pub age_seconds: u64,
    /// Whether the next connection goes there, or why not.
    pub status: &'static str,
}

/// Open pins.
pub struct Reader {
    pin_dir: PathBuf,
    names: HashMap<u32, (String, String)>,
}

impl Reader {
    /// Opens what is pinned below a directory.
    pub fn open(pin_dir: &Path) -> Result<Self, DatapathError> {
        if !layout_dir(pin_dir).is_dir() {
            return Err(DatapathError::NothingPinned {
                path: pin_dir.into(),
            });
        }
        let mut reader = Self {
            pin_dir: pin_dir.into(),
            names: HashMap::new(),
        };
        let names: Table<u32, ServiceName> = reader.table(maps::NAMES)?;
        for (id, name) in names.entries().map_err(failed(maps::NAMES))? {
            let service = format!("{}/{}", text(&name.namespace), text(&name.name));
            reader.names.insert(id, (service, text(&name.port_name)));
        }
        Ok(reader)
    }

    fn table<K: Plain, V: Plain>(&self, map: &'static str) -> Result<Table<K, V>, DatapathError> {
        let path = map_path(&self.pin_dir, map);
        get_pinned(&path, true)
            .and_then(Table::new)
            .map_err(failed(map))
    }
    fn name(&self, service: u32) -> (String, String) {
        let unknown = || (format!("(gone, id {service})"), String::new());
        self.names.get(&service).cloned().unwrap_or_else(unknown)
    }

    /// A service port as tables show it.
    fn service_port(&self, id: u32) -> String {
        match self.name(id) {
            (service, port_name) if port_name.is_empty() => service,
            (service, port_name) => format!("{service}:{port_name}"),
        }
    }

    /// Every frontend, sorted.
    pub fn frontends(&self) -> Result<Vec<Frontend>, DatapathError> {
        let mut rows = self.frontends_of::<V4>()?;
        rows.extend(self.frontends_of::<V6>()?);
        rows.sort();
        Ok(rows)
    }
    fn frontends_of<A: Family>(&self) -> Result<Vec<Frontend>, DatapathError> {
        let frontends: Table<FrontendKey<A>, u32> = self.table(A::FRONTENDS)?;
        let records: Table<u32, Record<A>> = self.table(A::RECORDS)?;
        let mut rows = Vec::new();
        for (key, id) in frontends.entries().map_err(failed(A::FRONTENDS))? {
            let record = records.lookup(&id).map_err(failed(A::RECORDS))?;
            // Another key's already: this frontend is being removed.
            let Some(record) = record.filter(|record| record.key == key) else {
                continue;
            };
            let (service, port_name) = self.name(record.service.0);
            rows.push(Frontend {
                service,
                port_name,
                kind: kind_name(record.flags.kind()),
                ip_family: if A::VERSION == 4 { "IPv4" } else { "IPv6" },
                address: (key.address != A::UNSPECIFIED).then(|| key.address.into()),
                port: key.port.host(),
                protocol: key.protocol.name(),
                internal_endpoints: record.internal.count(),
                external_endpoints: record.external.count(),
                policies: policies(record.flags, record.affinity_timeout),
                service_id: record.service.0,
            });
        }
        Ok(rows)
    }

    /// Every backend, sorted.
    pub fn backends(&self) -> Result<Vec<BackendRow>, DatapathError> {
        let mut rows = self.backends_of::<V4>()?;
        rows.extend(self.backends_of::<V6>()?);
        rows.sort();
        Ok(rows)
    }
    fn backends_of<A: Family>(&self) -> Result<Vec<BackendRow>, DatapathError> {
        let backends: Table<u32, Backend<A>> = self.table(A::BACKENDS)?;
        let mut rows = Vec::new();
        for (id, backend) in backends.entries().map_err(failed(A::BACKENDS))? {
            if backend.service.0 == 0 {
                continue;
            }
            let (service, port_name) = self.name(backend.service.0);
            rows.push(BackendRow {
                service,
                port_name,
                address: socket(backend.address, backend.port),
                sets: set_names(backend.sets),
                generation: backend.generation,
                backend_id: id,
            });
        }
        Ok(rows)
    }

    /// Every flow, sorted.
    pub fn flows(&self) -> Result<Vec<Flow>, DatapathError> {
        let mut rows = self.flows_of::<V4>()?;
        rows.extend(self.flows_of::<V6>()?);
        rows.sort();
        Ok(rows)
    }
    fn flows_of<A: Family>(&self) -> Result<Vec<Flow>, DatapathError> {
        let flows: Table<FlowKey<A>, FlowEntry<A>> = self.table(A::FLOWS)?;
        let entries: HashMap<_, _> = flows
            .entries()
            .map_err(failed(A::FLOWS))?
            .into_iter()
            .collect();
        let now = now();
        let originals = entries
            .iter()
            .filter(|(key, entry)| entry.kind == FlowKind::ORIGINAL && entry.is_whole(key));
        Ok(originals
            .map(|(key, entry)| self.flow_of(key, entry, &entries, now))
            .collect())
    }
    fn flow_of<A: Family>(
        &self,
        key: &FlowKey<A>,
        entry: &FlowEntry<A>,
        entries: &HashMap<FlowKey<A>, FlowEntry<A>>,
        now: u64,
    ) -> Flow {
        let mut reply_key = *key;
        entry.reply_key_into(key, &mut reply_key);
        let reply = entries
            .get(&reply_key)
            .filter(|reply| !reply.masquerade_port.is_any());
        Flow {
            service: self.service_port(entry.service.0),
            protocol: key.protocol.name(),
            client: socket(key.src, key.src_port),
            frontend: socket(key.dst, key.dst_port),
            backend: socket(entry.address, entry.port),
            translated_port: (entry.client_port != key.src_port).then(|| entry.client_port.host()),
            masquerade: reply.map(|reply| socket(reply.masquerade, reply.masquerade_port)),
            masqueraded: entry.is_masqueraded(),
            state: entry.state.name(),
            idle_seconds: now.saturating_sub(entry.last_seen) / SECOND,
        }
    }

    /// Every counter's sum over the CPUs, in the order of [`proxy_common::Counter::ALL`].
    pub fn counters(&self) -> Result<Vec<u64>, DatapathError> {
        let fd = get_pinned(&map_path(&self.pin_dir, maps::COUNTERS), true);
        fd.and_then(sys::per_cpu_sums)
            .map_err(failed(maps::COUNTERS))
    }

    /// Every affinity, sorted.
    pub fn affinities(&self) -> Result<Vec<Affinity>, DatapathError> {
        let mut rows = self.affinities_of::<V4>()?;
        rows.extend(self.affinities_of::<V6>()?);
        rows.sort();
        Ok(rows)
    }
    fn affinities_of<A: Family>(&self) -> Result<Vec<Affinity>, DatapathError> {
        let affinity: Table<AffinityKey<A>, AffinityEntry> = self.table(A::AFFINITY)?;
        let backends: Table<u32, Backend<A>> = self.table(A::BACKENDS)?;
        let timeouts = self.affinity_timeouts::<A>()?;
        let now = now();
        let mut rows = Vec::new();
        let holds = |service: ServiceId, holds: &dyn Fn(u32) -> bool| {
            timeouts.get(&service.0).map(|timeout| holds(*timeout))
        };
        for (key, entry) in affinity.entries().map_err(failed(A::AFFINITY))? {
            let client: IpAddr = key.client.into();
            let holds = holds(key.service, &|timeout| entry.holds(&key, timeout, now));
            rows.push(self.affinity(&backends, key.service, client.to_string(), &entry, holds)?);
        }
        for (key, entry) in self.pod_affinities()? {
            if key.family == A::VERSION {
                let client = format!("netns:{}", key.netns);
                let holds = holds(key.service, &|timeout| entry.holds(&key, timeout, now));
                rows.push(self.affinity(&backends, key.service, client, &entry, holds)?);
            }
        }
        Ok(rows)
    }
    /// One row; `holds` is whether the entry's time has not run out, if the service has affinity at all.
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
        Ok(Affinity {
            service: self.name(service.0).0,
            client,
            backend: current.map(|backend| socket(backend.address, backend.port)),
            age_seconds: now().saturating_sub(entry.last_used) / SECOND,
            status,
        })
    }
    /// Timeouts of the services with affinity, by service id.
    fn affinity_timeouts<A: Family>(&self) -> Result<HashMap<u32, u32>, DatapathError> {
        let frontends: Table<FrontendKey<A>, u32> = self.table(A::FRONTENDS)?;
        let records: Table<u32, Record<A>> = self.table(A::RECORDS)?;
        let mut timeouts = HashMap::new();
        for (_, id) in frontends.entries().map_err(failed(A::FRONTENDS))? {
            let record = records.lookup(&id).map_err(failed(A::RECORDS))?;
            if let Some(record) = record.filter(|record| record.flags.has(ServiceFlags::AFFINITY)) {
                timeouts.insert(record.service.0, record.affinity_timeout);
            }
        }
        Ok(timeouts)
    }
}

fn failed(map: &'static str) -> impl Fn(io::Error) -> DatapathError {
    move |source| DatapathError::Map {
        attempt: "read",
        map,
        source,
    }
}

fn socket(address: impl Into<IpAddr>, port: Port) -> SocketAddr {
    SocketAddr::new(address.into(), port.host())
}

fn kind_name(kind: FrontendKind) -> &'static str {
    match kind {
        FrontendKind::ClusterIp => "cluster-ip",
        FrontendKind::ExternalIp => "external-ip",
        FrontendKind::LoadBalancer => "load-balancer",
        FrontendKind::NodePort => "node-port",
        FrontendKind::Unserved => "unserved-ports",
    }
}

fn set_names(sets: EndpointSet) -> Vec<&'static str> {
    [
        (EndpointSet::CLUSTER, "cluster"),
        (EndpointSet::LOCAL, "local"),
    ]
    .into_iter()
    .filter(|(set, _)| sets.intersects(*set))
    .map(|(_, name)| name)
    .collect()
}

/// A frontend's policies and options in words.
fn policies(flags: ServiceFlags, affinity_timeout: u32) -> Vec<String> {
    let mut words = Vec::new();
    if flags.kind() == FrontendKind::Unserved {
        return vec!["rejects".into()];
    }
    if !flags.has(ServiceFlags::HAS_ENDPOINTS) {
        words.push("rejects: no endpoints".into());
    }
    if flags.has(ServiceFlags::EXTERNAL_LOCAL) {
        words.push("external policy Local".into());
    }
    if flags.has(ServiceFlags::INTERNAL_BLOCK_LOCAL) {
        words.push("internal policy Local".into());
    }
    if flags.has(ServiceFlags::SOURCE_RANGES) {
        words.push("source ranges".into());
    }
    if flags.has(ServiceFlags::AFFINITY) {
        words.push(format!("ClientIP affinity {affinity_timeout} s"));
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_are_told_in_words() {
        let flags = ServiceFlags::new(FrontendKind::LoadBalancer)
            .with(ServiceFlags::HAS_ENDPOINTS, true)
            .with(ServiceFlags::EXTERNAL_LOCAL, true)
            .with(ServiceFlags::AFFINITY, true);
        assert_eq!(
            policies(flags, 60),
            ["external policy Local", "ClientIP affinity 60 s"]
        );
        assert_eq!(
            policies(ServiceFlags::new(FrontendKind::ClusterIp), 0),
            ["rejects: no endpoints"]
        );
        assert_eq!(
            policies(ServiceFlags::new(FrontendKind::Unserved), 0),
            ["rejects"]
        );
    }

    #[test]
    fn a_backend_that_nothing_selects_has_no_set() {
        assert_eq!(
            set_names(EndpointSet::CLUSTER.union(EndpointSet::LOCAL)),
            ["cluster", "local"]
        );
        assert!(set_names(EndpointSet::NONE).is_empty());
    }
}
