// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Finds references between the maps that lead to a missing or wrong element: from frontends to
//! records, from records to slots and backends, and from all of them to names. Works on copies of
//! the maps.

use std::collections::{BTreeSet, HashMap};

use linux::{LpmKey, Plain};
use proxy_common::{
    Backend, Block, FrontendKey, Port, Protocol, Record, ServiceId, V4, V6, maps,
    service::SourceRangeKey,
};
use serde::Serialize;

use super::{Reader, failed, socket};
use crate::{
    error::DatapathError,
    maps::{family::Family, tables::Table},
};

/// One reference that leads to a missing or wrong element.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Dangling {
    /// Namespace, name and port name of the service, as far as known.
    pub service: String,
    /// The element that has the reference, such as `frontend 10.0.0.1:80/TCP`.
    pub from: String,
    /// What is wrong with the reference, in words.
    pub fault: String,
    /// True if packets are lost because of this fault.
    pub is_felt: bool,
}

/// Copies of the maps of one family. Those of arrays are complete: an id is a position in the
/// vector.
struct Found<A: Family> {
    frontends: Vec<(FrontendKey<A>, u32)>,
    records: Vec<Record<A>>,
    slots: Vec<u32>,
    backends: Vec<Backend<A>>,
    sources: Vec<SourceRangeKey<A>>,
}

impl Reader {
    /// Returns every dangling reference of this moment. A change that is just being written may
    /// look like one, so only what is found twice, some time apart, is a fault.
    pub fn dangling(&self) -> Result<BTreeSet<Dangling>, DatapathError> {
        let mut all = self.dangling_of::<V4>()?;
        all.extend(self.dangling_of::<V6>()?);
        Ok(all)
    }

    fn dangling_of<A: Family>(&self) -> Result<BTreeSet<Dangling>, DatapathError> {
        let frontends: Table<FrontendKey<A>, u32> = self.table(A::FRONTENDS)?;
        let sources: Table<LpmKey<A>, u32> = self.table(A::SOURCE_RANGES)?;
        let sources = sources.entries().map_err(failed(A::SOURCE_RANGES))?;
        let found = Found {
            // Keys are read before the elements that they lead to, which the agent writes in the
            // opposite order.
            frontends: frontends.entries().map_err(failed(A::FRONTENDS))?,
            records: self.array(A::RECORDS)?,
            slots: self.array(maps::SLOTS)?,
            backends: self.array(A::BACKENDS)?,
            sources: sources.into_iter().map(|(key, _)| key.data).collect(),
        };
        Ok(found.dangling(|id| {
            self.names
                .contains_key(&id.0)
                .then(|| self.service_port(id.0))
        }))
    }

    /// Returns the elements of an array, in order.
    fn array<V: Plain>(&self, map: &'static str) -> Result<Vec<V>, DatapathError> {
        let table: Table<u32, V> = self.table(map)?;
        let entries = table.entries().map_err(failed(map))?;
        Ok(entries.into_iter().map(|(_, value)| value).collect())
    }
}

impl<A: Family> Found<A> {
    fn dangling(&self, name: impl Fn(ServiceId) -> Option<String>) -> BTreeSet<Dangling> {
        let mut found = BTreeSet::new();
        let mut add = |service: ServiceId, from: String, fault: String, is_felt: bool| {
            let service = name(service).unwrap_or_else(|| format!("(no name, id {})", service.0));
            found.insert(Dangling {
                service,
                from,
                fault,
                is_felt,
            });
        };
        for (key, id) in &self.frontends {
            let from = told(key);
            let record = self.records.get(*id as usize);
            let Some(record) = record.filter(|record| record.key == *key) else {
                let fault = format!("leads to the record {id}, which is not its own");
                add(ServiceId::NONE, from, fault, true);
                continue;
            };
            let service = record.service;
            if name(service).is_none() {
                let fault = format!("belongs to the service id {}, which has no name", service.0);
                add(service, from.clone(), fault, false);
            }
            for (which, block) in [("internal", record.internal), ("external", record.external)] {
                if let Some(fault) = self.fault_of(block, service) {
                    add(service, from.clone(), format!("its {which} {fault}"), true);
                }
            }
        }
        for (id, backend) in self.backends.iter().enumerate() {
            if backend.service != ServiceId::NONE && name(backend.service).is_none() {
                let from = format!("backend {}", socket(backend.address, backend.port));
                let fault = format!(
                    "with the id {id} belongs to the service id {}, which has no name",
                    backend.service.0
                );
                add(backend.service, from, fault, false);
            }
        }
        for source in &self.sources {
            if name(source.service).is_none() {
                let from = format!("source range of {}", source.address.into());
                let fault = format!(
                    "belongs to the service id {}, which has no name",
                    source.service.0
                );
                add(source.service, from, fault, false);
            }
        }
        found
    }

    /// Describes the first fault that the programs would meet in a block of this service port;
    /// `None` if there is none.
    fn fault_of(&self, block: Block, service: ServiceId) -> Option<String> {
        let (first, count) = (block.first() as usize, block.count() as usize);
        if count == 0 {
            return None;
        }
        let Some(slots) = self.slots.get(first..first + count) else {
            return Some(format!(
                "slots {first} to {} lie outside of the map",
                first + count - 1
            ));
        };
        let mut wrong: HashMap<u32, usize> = HashMap::new();
        for id in slots {
            let backend = self.backends.get(*id as usize);
            if *id == 0 || backend.is_none_or(|backend| backend.service != service) {
                *wrong.entry(*id).or_default() += 1;
            }
        }
        let (id, _) = wrong.iter().min()?;
        let slots: usize = wrong.values().sum();
        Some(format!(
            "slots lead to backends that are not its own: {slots} of {count}, one of them to the backend {id}"
        ))
    }
}

/// Returns a text that names a frontend to an operator.
fn told<A: Family>(key: &FrontendKey<A>) -> String {
    let FrontendKey {
        address,
        port,
        protocol,
        ..
    } = *key;
    let ip: std::net::IpAddr = address.into();
    if port == Port::ANY {
        let which = if protocol == Protocol::ANY {
            "every other port"
        } else {
            "echo requests"
        };
        return format!("frontend {ip} ({which})");
    }
    if address == A::UNSPECIFIED {
        return format!("node port {}/{}", port.host(), protocol.name());
    }
    format!("frontend {}/{}", socket(ip, port), protocol.name())
}

#[cfg(test)]
mod tests {
    use proxy_common::{Addr, BackendId, EndpointSet, FrontendKind, ServiceFlags};

    use super::*;

    const CART: ServiceId = ServiceId(5);

    fn address(octets: [u8; 4]) -> V4 {
        V4 { octets }
    }

    fn backend(service: ServiceId) -> Backend<V4> {
        Backend {
            address: address([10, 0, 0, 7]),
            port: Port::from_host(8080),
            sets: EndpointSet::CLUSTER,
            generation: 0,
            service,
        }
    }

    fn record(key: FrontendKey<V4>, internal: Block) -> Record<V4> {
        Record {
            internal,
            external: Block::EMPTY,
            flags: ServiceFlags::new(FrontendKind::ClusterIp),
            service: CART,
            affinity_timeout: 0,
            key,
            _pad: <V4 as Addr>::RecordPad::default(),
        }
    }

    /// One service with one frontend, two slots and one backend.
    fn whole() -> Found<V4> {
        let key = FrontendKey::new(address([172, 30, 1, 1]), Port::from_host(80), Protocol::TCP);
        let other = FrontendKey::node_port(Port::from_host(30_080), Protocol::TCP);
        Found {
            frontends: vec![(key, 1)],
            records: vec![record(other, Block::EMPTY), record(key, Block::new(1, 2))],
            slots: vec![0, BackendId(1).0, BackendId(1).0],
            backends: vec![backend(ServiceId::NONE), backend(CART)],
            sources: vec![SourceRangeKey {
                service: CART,
                address: address([10, 0, 0, 0]),
            }],
        }
    }

    fn faults(found: &Found<V4>) -> Vec<(String, bool)> {
        let name = |id| (id == CART).then(|| "shop/cart".to_owned());
        let all = found.dangling(name).into_iter();
        all.map(|one| {
            (
                format!("{} {} {}", one.service, one.from, one.fault),
                one.is_felt,
            )
        })
        .collect()
    }

    #[test]
    fn consistent_maps_have_no_faults() {
        assert_eq!(faults(&whole()), []);
    }

    #[test]
    fn a_frontend_that_leads_to_a_wrong_record_is_reported() {
        for wrong in [0, 9] {
            let mut found = whole();
            found.frontends[0].1 = wrong;
            let said = format!(
                "(no name, id 0) frontend 172.30.1.1:80/TCP leads to the record {wrong}, which is not its own"
            );
            assert_eq!(faults(&found), [(said, true)]);
        }
    }

    #[test]
    fn a_slot_with_a_wrong_or_missing_backend_is_named() {
        type Change = dyn Fn(&mut Found<V4>);
        let ways: [(&Change, &str); 4] = [
            (
                &|found| found.slots[2] = 0,
                "1 of 2, one of them to the backend 0",
            ),
            (
                &|found| found.slots[1] = 77,
                "1 of 2, one of them to the backend 77",
            ),
            (
                &|found| found.backends[1].service = ServiceId::NONE,
                "2 of 2, one of them to the backend 1",
            ),
            (
                &|found| found.slots.truncate(2),
                "slots 1 to 2 lie outside of the map",
            ),
        ];
        for (change, words) in ways {
            let mut found = whole();
            change(&mut found);
            let faults = faults(&found);
            assert_eq!(faults.len(), 1, "{faults:?}");
            let (said, is_felt) = &faults[0];
            assert!(
                said.starts_with("shop/cart frontend 172.30.1.1:80/TCP its internal slots")
                    && said.ends_with(words)
                    && *is_felt,
                "{said}"
            );
        }
    }

    #[test]
    fn map_entries_without_a_service_are_reported_as_harmless_to_packets() {
        let all = whole().dangling(|_| None);
        let from: Vec<_> = all.iter().map(|one| (&*one.from, one.is_felt)).collect();
        assert_eq!(
            from,
            [
                ("backend 10.0.0.7:8080", false),
                ("frontend 172.30.1.1:80/TCP", false),
                ("source range of 10.0.0.0", false)
            ]
        );
    }
}
