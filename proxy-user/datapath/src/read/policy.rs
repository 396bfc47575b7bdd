// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Predicts from the pinned maps what happens to a connection: its service, and the endpoints that
//! the policy chooses from. The policy is code in `proxy_common` that the kernel programs use, too.

use std::{
    collections::{BTreeSet, HashMap},
    net::{IpAddr, SocketAddr},
    rc::Rc,
};

use linux::LpmKey;
use proxy_common::{
    Backend, Block, FrontendKey, FrontendKind, Port, Protocol, Record, RecordId, ServiceFlags,
    ServiceId, Settings, V4, V6, decide,
    lookup::{FrontendMaps, find_record},
    maps::{self, node_address},
    origin_of_packet, ports,
    ranges::Ranges,
    settings::any_contains,
    verdict::Verdict,
};

use super::{Reader, failed, socket};
use crate::{
    error::DatapathError,
    maps::{family::Family, tables::Table},
};

/// What happens to a new connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Decision {
    /// The service port: "namespace/name", and ":" and the port's name if it has one.
    pub service: String,
    pub fate: Fate,
}

/// What the policy does with a new connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Fate {
    /// Forwards the connection to one of these endpoints. `masquerade` says whether the client's
    /// address would be replaced; `None` if the maps alone do not say it.
    Forward {
        endpoints: Rc<BTreeSet<SocketAddr>>,
        masquerade: Option<bool>,
    },
    /// Rejects or drops the connection; the text says which, and why.
    Refuse(&'static str),
}

/// A copy of the maps that the policy depends on, for both address families.
pub struct Policies {
    v4: PolicyMaps<V4>,
    v6: PolicyMaps<V6>,
}

impl Reader {
    /// Reads the maps that the policy depends on.
    pub fn policies(&self) -> Result<Policies, DatapathError> {
        Ok(Policies {
            v4: self.policy_maps(|settings| &settings.services_v4)?,
            v6: self.policy_maps(|settings| &settings.services_v6)?,
        })
    }

    fn policy_maps<A: Family>(
        &self,
        ranges: fn(&Settings) -> &Ranges<A>,
    ) -> Result<PolicyMaps<A>, DatapathError> {
        let settings: Table<u32, Settings> = self.table(maps::SETTINGS)?;
        let settings = settings.lookup(&0).map_err(failed(maps::SETTINGS))?;
        let settings = settings.unwrap_or(Settings::EMPTY);
        let frontends: Table<FrontendKey<A>, u32> = self.table(A::FRONTENDS)?;
        let records: Table<u32, Record<A>> = self.table(A::RECORDS)?;
        let mut by_key = HashMap::new();
        let mut by_id = HashMap::new();
        for (key, id) in frontends.entries().map_err(failed(A::FRONTENDS))? {
            let record = records.lookup(&id).map_err(failed(A::RECORDS))?;
            if let Some(record) = record.filter(|record| record.key == key) {
                by_key.insert(key, RecordId(id));
                by_id.insert(id, (record, self.service_port(record.service.0)));
            }
        }
        let addresses: Table<A, u32> = self.table(A::NODE_ADDRESSES)?;
        let addresses = addresses.entries().map_err(failed(A::NODE_ADDRESSES))?;
        let sources: Table<LpmKey<A>, u32> = self.table(A::SOURCE_RANGES)?;
        let sources = sources.entries().map_err(failed(A::SOURCE_RANGES))?;
        Ok(PolicyMaps {
            services: *ranges(&settings),
            settings,
            frontends: by_key,
            records: by_id,
            addresses: addresses.into_iter().collect(),
            sources: sources.into_iter().map(|(key, _)| key).collect(),
            slots: self.table(maps::SLOTS)?,
            backends: self.table(A::BACKENDS)?,
            blocks: HashMap::new(),
        })
    }
}

impl Policies {
    /// Returns the names of the service ports that have a frontend.
    pub fn services(&self) -> BTreeSet<String> {
        self.v4.names().chain(self.v6.names()).cloned().collect()
    }

    /// Returns what would happen to a new connection; `None` if its destination is no service.
    pub fn decide(
        &mut self,
        protocol: Protocol,
        client: IpAddr,
        destination: SocketAddr,
    ) -> Result<Option<Decision>, DatapathError> {
        let port = Port::from_host(destination.port());
        match (client, destination.ip()) {
            (IpAddr::V4(client), IpAddr::V4(to)) => {
                let is_pod = any_contains(&self.v4.settings.pods_v4, client.into());
                self.v4
                    .decide(protocol, client.into(), is_pod, to.into(), port)
            }
            (IpAddr::V6(client), IpAddr::V6(to)) => {
                let is_pod = any_contains(&self.v6.settings.pods_v6, client.into());
                self.v6
                    .decide(protocol, client.into(), is_pod, to.into(), port)
            }
            _ => Ok(None),
        }
    }
}

struct PolicyMaps<A: Family> {
    settings: Settings,
    services: Ranges<A>,
    frontends: HashMap<FrontendKey<A>, RecordId>,
    /// The records of frontends by their ids, each with the name of its service port.
    records: HashMap<u32, (Record<A>, String)>,
    addresses: HashMap<A, u32>,
    sources: Vec<LpmKey<A>>,
    slots: Table<u32, u32>,
    backends: Table<u32, Backend<A>>,
    /// The endpoints of those blocks that were looked up already, by the block's word.
    blocks: HashMap<u64, Rc<BTreeSet<SocketAddr>>>,
}

impl<A: Family> FrontendMaps<A> for PolicyMaps<A> {
    /// Returns the bits that make `find_record` look for every frontend: a look-up costs nothing
    /// here.
    fn bits(&self, _: Port) -> u64 {
        ports::FRONTEND | ports::NODE_PORT
    }
    fn record(&self, key: &FrontendKey<A>) -> Option<RecordId> {
        self.frontends.get(key).copied()
    }
    fn serves_node_ports(&self, address: A) -> bool {
        let flags = self.addresses.get(&address);
        flags.is_some_and(|flags| flags & node_address::NODE_PORT != 0)
    }
    fn in_service_range(&self, address: A) -> bool {
        self.services.contains(address)
    }
}

impl<A: Family> PolicyMaps<A> {
    fn names(&self) -> impl Iterator<Item = &String> {
        let records = self.records.values();
        let of_ports = records.filter(|(record, _)| {
            !matches!(
                record.flags.kind(),
                FrontendKind::Unserved | FrontendKind::Echo
            )
        });
        of_ports.map(|(_, name)| name)
    }

    fn decide(
        &mut self,
        protocol: Protocol,
        client: A,
        in_pod_range: bool,
        to: A,
        port: Port,
    ) -> Result<Option<Decision>, DatapathError> {
        let Some(id) = find_record(self, to, port, protocol) else {
            return Ok(None);
        };
        let Some((record, service)) = self.records.get(&id.0).cloned() else {
            return Ok(None);
        };
        let is_node = self.addresses.contains_key(&client);
        let by_interface = self.settings.has(Settings::PODS_BY_INTERFACE);
        // It is not known on which interface the packet comes in, so every client except the node
        // counts as a pod.
        let origin = origin_of_packet::<A>(
            &self.settings,
            record.flags,
            || !is_node,
            || in_pod_range,
            || is_node,
        );
        let allowed =
            !record.flags.has(ServiceFlags::SOURCE_RANGES) || self.allows(record.service, client);
        let verdict = decide(
            record.flags,
            origin,
            self.settings.policy::<A>(),
            record.internal.count() != 0,
            record.external.count() != 0,
            allowed,
        );
        let fate = match verdict {
            Verdict::Forward {
                external,
                masquerade,
            } => {
                let block = if external {
                    record.external
                } else {
                    record.internal
                };
                Fate::Forward {
                    endpoints: self.endpoints(block)?,
                    // A process of the node has the node's address anyway.
                    masquerade: (!is_node && !by_interface).then_some(masquerade),
                }
            }
            Verdict::Reject => Fate::Refuse("rejected"),
            Verdict::DropNoLocalEndpoint => Fate::Refuse("dropped: no local endpoint"),
            Verdict::DropSource => Fate::Refuse("dropped: the client is outside the source ranges"),
        };
        Ok(Some(Decision { service, fate }))
    }

    fn allows(&self, service: ServiceId, client: A) -> bool {
        let client: IpAddr = client.into();
        let ranges = self
            .sources
            .iter()
            .filter(|key| key.data.service == service);
        ranges
            .filter_map(A::range_of)
            .any(|range| range.contains(&client))
    }

    fn endpoints(&mut self, block: Block) -> Result<Rc<BTreeSet<SocketAddr>>, DatapathError> {
        if let Some(known) = self.blocks.get(&block.0) {
            return Ok(Rc::clone(known));
        }
        // A lookup table has each backend in many slots.
        let mut ids = BTreeSet::new();
        for slot in block.first()..block.first() + block.count() {
            ids.extend(self.slots.lookup(&slot).map_err(failed(maps::SLOTS))?);
        }
        let mut found = BTreeSet::new();
        for id in ids {
            let backend = self.backends.lookup(&id).map_err(failed(A::BACKENDS))?;
            found.extend(backend.map(|backend| socket(backend.address, backend.port)));
        }
        let found = Rc::new(found);
        self.blocks.insert(block.0, Rc::clone(&found));
        Ok(found)
    }
}
