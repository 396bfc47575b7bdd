// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Lists the frontends and backends that the programs serve, and the slots that backends have in
//! the blocks of their service port: their shares of new connections.

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
};

use proxy_common::{
    Backend, BackendId, Block, EndpointSet, FrontendKind, ServiceFlags, ServiceId, V4, V6, maps,
};
use serde::Serialize;

use super::{Reader, failed, socket, sorted};
use crate::{
    error::DatapathError,
    maps::{arrays::MappedArray, family::Family},
};

/// One address and port that clients can reach.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Frontend {
    /// The service's namespace and name.
    pub service: String,
    pub port_name: String,
    pub kind: &'static str,
    pub ip_family: &'static str,
    /// The address; `None` for a node port, which is served on every node address for node ports.
    pub address: Option<IpAddr>,
    /// The port. 0 stands for all those ports of a cluster IP that the service does not serve, and
    /// for echo requests (kind `ping`).
    pub port: u16,
    pub protocol: &'static str,
    /// Number of slots for pods and for this node's processes: one per endpoint, or the size of the
    /// Maglev table.
    pub internal_endpoints: u32,
    /// Number of slots for all other clients.
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
    /// The port number of the service; 0 if the service is not in the map of names.
    pub service_port: u16,
    pub protocol: &'static str,
    /// The endpoint sets that contain the backend: `cluster`, `local`. They decide which policies
    /// may choose it.
    pub sets: Vec<&'static str>,
    /// The backend's share of new connections by each of these sets: 0 slots with weight 0.
    pub shares: Vec<Share>,
    pub generation: u32,
    pub backend_id: u32,
}

impl Reader {
    /// Returns every frontend, sorted.
    pub fn frontends(&self) -> Result<Vec<Frontend>, DatapathError> {
        Ok(sorted(
            self.frontends_of::<V4>()?,
            self.frontends_of::<V6>()?,
        ))
    }
    fn frontends_of<A: Family>(&self) -> Result<Vec<Frontend>, DatapathError> {
        let mut rows = Vec::new();
        for record in self.records::<A>()? {
            let key = record.key;
            let named = self.name(record.service.0);
            // The record has the id of one of the service's ports, but these kinds are not ports.
            let is_port = !matches!(
                record.flags.kind(),
                FrontendKind::Unserved | FrontendKind::Echo
            );
            rows.push(Frontend {
                service: named.service,
                port_name: if is_port {
                    named.port_name
                } else {
                    String::new()
                },
                kind: kind_name(record.flags.kind()),
                ip_family: family_name::<A>(),
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

    /// Returns every backend, sorted.
    pub fn backends(&self) -> Result<Vec<BackendRow>, DatapathError> {
        Ok(sorted(self.backends_of::<V4>()?, self.backends_of::<V6>()?))
    }
    fn backends_of<A: Family>(&self) -> Result<Vec<BackendRow>, DatapathError> {
        let shares = self.shares::<A>()?;
        let mut rows = Vec::new();
        for (id, backend) in self.entries::<u32, Backend<A>>(A::BACKENDS)? {
            if backend.service.0 == 0 {
                continue;
            }
            let named = self.name(backend.service.0);
            rows.push(BackendRow {
                service: named.service,
                port_name: named.port_name,
                address: socket(backend.address, backend.port),
                service_port: named.port,
                protocol: named.protocol,
                sets: set_names(backend.sets).map(|(_, name)| name).collect(),
                shares: set_names(backend.sets)
                    .map(|(set, _)| shares.of(backend.service, BackendId(id), set))
                    .collect(),
                generation: backend.generation,
                backend_id: id,
            });
        }
        Ok(rows)
    }
}

/// KUBE: returns the name of the address family as a Service's `ipFamilies` spells it.
pub(super) fn family_name<A: Family>() -> &'static str {
    if A::VERSION == 4 { "IPv4" } else { "IPv6" }
}

/// Returns the kind as lists and reports spell it.
pub fn kind_name(kind: FrontendKind) -> &'static str {
    match kind {
        FrontendKind::ClusterIp => "cluster-ip",
        FrontendKind::ExternalIp => "external-ip",
        FrontendKind::LoadBalancer => "load-balancer",
        FrontendKind::NodePort => "node-port",
        FrontendKind::Unserved => "unserved-ports",
        FrontendKind::Echo => "ping",
    }
}

fn set_names(sets: EndpointSet) -> impl Iterator<Item = (EndpointSet, &'static str)> {
    [
        (EndpointSet::CLUSTER, "cluster"),
        (EndpointSet::LOCAL, "local"),
    ]
    .into_iter()
    .filter(move |(set, _)| sets.intersects(*set))
}

/// Returns a frontend's policies and options in words. A frontend is of one traffic policy: the
/// internal one of cluster IPs, the external one of all others.
fn policies(flags: ServiceFlags, affinity_timeout: u32) -> Vec<String> {
    match flags.kind() {
        FrontendKind::Unserved => return vec!["rejects".into()],
        FrontendKind::Echo => return vec!["answers ping".into()],
        _ => {}
    }
    let affinity = format!("affinity {affinity_timeout}s");
    let words = [
        (ServiceFlags::HAS_ENDPOINTS, false, "no endpoints"),
        (ServiceFlags::EXTERNAL_LOCAL, true, "Local"),
        (ServiceFlags::INTERNAL_BLOCK_LOCAL, true, "Local"),
        (ServiceFlags::SOURCE_RANGES, true, "source ranges"),
        (ServiceFlags::AFFINITY, true, &affinity),
    ];
    let said = words
        .iter()
        .filter(|(flag, set, _)| flags.has(*flag) == *set);
    said.map(|(_, _, word)| (*word).to_owned()).collect()
}

/// A backend's share of the new connections of one endpoint set: so many slots of a block.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Share {
    pub slots: u32,
    pub of: u32,
}

/// The slots of all blocks of one address family, by endpoint set.
#[derive(Default)]
struct Shares {
    blocks: HashMap<(ServiceId, u16), Block>,
    owned: HashMap<(BackendId, u16), u32>,
}

impl Shares {
    /// Returns the share of a service port's backend in a set.
    fn of(&self, service: ServiceId, id: BackendId, set: EndpointSet) -> Share {
        let block = self.blocks.get(&(service, set.0));
        Share {
            slots: self.owned.get(&(id, set.0)).copied().unwrap_or(0),
            of: block.map_or(0, |block| block.count()),
        }
    }

    /// Takes a set's block. Returns false if its slots need no counting: the set has a block
    /// already, or this one is empty, as those of a frontend that is no port (`unserved-ports`).
    fn take(&mut self, service: ServiceId, set: u16, block: Block) -> bool {
        let is_new = block.count() != 0 && !self.blocks.contains_key(&(service, set));
        if is_new {
            self.blocks.insert((service, set), block);
        }
        is_new
    }
}

impl Reader {
    fn shares<A: Family>(&self) -> Result<Shares, DatapathError> {
        let slots: MappedArray<u32> = self.array(maps::SLOTS)?;
        let mut shares = Shares::default();
        for record in self.records::<A>()? {
            for (external, block) in [(false, record.internal), (true, record.external)] {
                let set = record.flags.set_of_block(external).0;
                if !shares.take(record.service, set, block) {
                    continue;
                }
                let end = block.first().saturating_add(block.count());
                if end > slots.capacity() {
                    continue;
                }
                let mapped = slots.ensure(block.first(), block.count());
                mapped.map_err(failed(maps::SLOTS))?;
                for at in block.first()..end {
                    let owner = (BackendId(slots.load(at)), set);
                    *shares.owned.entry(owner).or_default() += 1;
                }
            }
        }
        Ok(shares)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn service_flags_are_printed_as_policies_and_endpoint_sets_by_name() {
        let served = ServiceFlags::new(FrontendKind::LoadBalancer)
            .with(ServiceFlags::HAS_ENDPOINTS, true)
            .with(ServiceFlags::EXTERNAL_LOCAL, true)
            .with(ServiceFlags::AFFINITY, true);
        let of = ServiceFlags::new;
        for (flags, timeout, expected) in [
            (served, 60, "Local, affinity 60s"),
            (of(FrontendKind::ClusterIp), 0, "no endpoints"),
            (of(FrontendKind::Unserved), 0, "rejects"),
        ] {
            assert_eq!(policies(flags, timeout).join(", "), expected);
        }
        let both = EndpointSet::CLUSTER.union(EndpointSet::LOCAL);
        for (sets, expected) in [(both, &["cluster", "local"][..]), (EndpointSet::NONE, &[])] {
            assert_eq!(
                Vec::from_iter(set_names(sets).map(|(_, name)| name)),
                expected
            );
        }
    }

    #[test]
    fn an_empty_block_of_the_same_service_does_not_hide_the_ports_block() {
        let (service, set) = (ServiceId(7), EndpointSet::CLUSTER);
        let mut shares = Shares::default();
        assert!(!shares.take(service, set.0, Block::EMPTY));
        assert!(shares.take(service, set.0, Block::new(40, 3)));
        assert!(!shares.take(service, set.0, Block::new(40, 3)));
        shares.owned.insert((BackendId(1), set.0), 1);
        let share = shares.of(service, BackendId(1), set);
        assert_eq!((share.slots, share.of), (1, 3));
    }
}
