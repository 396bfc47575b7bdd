// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Lists the map elements that belong to frontends, by path and key, in the order in which the
//! programs look them up. With this list an operator can read them with another tool, such as
//! bpftool.

use std::{collections::HashSet, net::SocketAddr, path::PathBuf};

use ipnet::IpNet;
use linux::{LpmKey, Plain, get_pinned};
use proxy_common::{
    AffinityEntry, AffinityKey, Backend, Block, Counter, FrontendKey, PodAffinityKey, Port,
    Protocol, Record, ServiceFlags, V4, V6, maps as names, traffic::RefusedKey,
};

use super::{Frontend, Reader, failed, socket};
use crate::{
    error::DatapathError,
    maps::{
        counted::{RefusedMap, TrafficMap},
        family::Family,
        tables::Table,
    },
};

/// An element of a pinned map.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Element {
    pub map: PathBuf,
    /// The key; `None` for a hint about the whole map, which has no element for the service.
    pub key: Option<Vec<u8>>,
    pub about: About,
}

/// What an element is about.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum About {
    Frontend(Frontend),
    /// The record's id, and the number of slots of its internal and external block.
    Record(u32, [u32; 2]),
    /// The slot's position in its block, the number of slots in the block, and the id of the
    /// backend in the slot.
    Slot(u32, u32, u32),
    Backend(u32, SocketAddr),
    /// A backend's address, and true if it has traffic counters of its own; false if element 0
    /// counts it together with others.
    Traffic(SocketAddr, bool),
    /// The service port's id.
    Name(u32),
    Source(IpNet),
    /// An affinity entry: the client, and the id of the backend that it has affinity to.
    Held(String, u32),
    /// No client of the service port with this id has affinity now.
    NobodyHeld(u32),
    Refused(Counter),
}

/// How many slots of each block are listed; the others are similar.
const SLOTS: u32 = 4;
/// How many backends, source ranges and clients are listed at most; there may be very many of each.
const MOST: usize = 16;

/// The elements found so far, and the ids whose elements must still be added.
#[derive(Default)]
struct Found {
    elements: Vec<Element>,
    seen: HashSet<(&'static str, Vec<u8>)>,
    services: Vec<u32>,
    backends: Vec<u32>,
}

impl Reader {
    /// Returns the elements that belong to frontends, without duplicates.
    pub fn elements(&self, of: &[Frontend]) -> Result<Vec<Element>, DatapathError> {
        let mut elements = self.elements_of::<V4>(of)?;
        elements.extend(self.elements_of::<V6>(of)?);
        Ok(elements)
    }

    fn elements_of<A: Family>(&self, of: &[Frontend]) -> Result<Vec<Element>, DatapathError> {
        let frontends: Table<FrontendKey<A>, u32> = self.table(A::FRONTENDS)?;
        let records: Table<u32, Record<A>> = self.table(A::RECORDS)?;
        let mut found = Found::default();
        let mut affine = HashSet::new();
        for row in of {
            let Some(key) = key_of::<A>(row) else {
                continue;
            };
            let id = frontends.lookup(&key).map_err(failed(A::FRONTENDS))?;
            let Some(id) = id else { continue };
            let record = records.lookup(&id).map_err(failed(A::RECORDS))?;
            // The record has another key already: this frontend is being removed.
            let Some(record) = record.filter(|record| record.key == key) else {
                continue;
            };
            self.put(&mut found, A::FRONTENDS, &key, About::Frontend(row.clone()));
            let blocks = [record.internal, record.external];
            let counts = blocks.map(Block::count);
            self.put(&mut found, A::RECORDS, &id, About::Record(id, counts));
            for block in blocks {
                self.put_slots(&mut found, block)?;
            }
            if record.flags.has(ServiceFlags::AFFINITY) {
                affine.insert(record.service.0);
            }
            if !found.services.contains(&record.service.0) {
                found.services.push(record.service.0);
            }
        }
        self.put_backends::<A>(&mut found)?;
        for service in std::mem::take(&mut found.services) {
            self.put(&mut found, names::NAMES, &service, About::Name(service));
            self.put_sources::<A>(&mut found, service)?;
            if affine.contains(&service) {
                self.put_affinity::<A>(&mut found, service)?;
            }
            self.put_refused(&mut found, service)?;
        }
        Ok(found.elements)
    }

    fn put(&self, found: &mut Found, map: &'static str, key: &impl Plain, about: About) {
        let key = key.bytes().to_vec();
        if found.seen.insert((map, key.clone())) {
            found.elements.push(Element {
                map: self.home.join(map),
                key: Some(key),
                about,
            });
        }
    }

    fn put_slots(&self, found: &mut Found, block: Block) -> Result<(), DatapathError> {
        let slots: Table<u32, u32> = self.table(names::SLOTS)?;
        for number in 0..block.count() {
            let slot = block.first() + number;
            let backend = slots.lookup(&slot).map_err(failed(names::SLOTS))?;
            let backend = backend.unwrap_or_default();
            if !found.backends.contains(&backend) && found.backends.len() < MOST {
                found.backends.push(backend);
            }
            if number < SLOTS {
                let about = About::Slot(number, block.count(), backend);
                self.put(found, names::SLOTS, &slot, about);
            } else if found.backends.len() == MOST {
                break;
            }
        }
        Ok(())
    }

    fn put_backends<A: Family>(&self, found: &mut Found) -> Result<(), DatapathError> {
        let backends: Table<u32, Backend<A>> = self.table(A::BACKENDS)?;
        let counted = get_pinned(&self.home.join(A::TRAFFIC), true).and_then(TrafficMap::new);
        let counted = counted.map_err(failed(A::TRAFFIC))?;
        for id in std::mem::take(&mut found.backends) {
            let backend = backends.lookup(&id).map_err(failed(A::BACKENDS))?;
            let Some(backend) = backend else { continue };
            let address = socket(backend.address, backend.port);
            self.put(found, A::BACKENDS, &id, About::Backend(id, address));
            let is_alone = id < counted.capacity();
            let place = if is_alone { id } else { 0 };
            self.put(found, A::TRAFFIC, &place, About::Traffic(address, is_alone));
        }
        Ok(())
    }

    fn put_sources<A: Family>(&self, found: &mut Found, service: u32) -> Result<(), DatapathError> {
        let sources: Table<LpmKey<A>, u32> = self.table(A::SOURCE_RANGES)?;
        let entries = sources.entries().map_err(failed(A::SOURCE_RANGES))?;
        let own = entries
            .iter()
            .filter(|(key, _)| key.data.service.0 == service);
        for (key, _) in own.take(MOST) {
            if let Some(range) = A::range_of(key) {
                self.put(found, A::SOURCE_RANGES, key, About::Source(range));
            }
        }
        Ok(())
    }

    fn put_affinity<A: Family>(
        &self,
        found: &mut Found,
        service: u32,
    ) -> Result<(), DatapathError> {
        let before = found.elements.len();
        let clients: Table<AffinityKey<A>, AffinityEntry> = self.table(A::AFFINITY)?;
        let clients = clients.entries().map_err(failed(A::AFFINITY))?;
        let own = clients.iter().filter(|(key, _)| key.service.0 == service);
        for (key, entry) in own.take(MOST) {
            let client = key.client.into().to_string();
            let about = About::Held(client, entry.backend.0);
            self.put(found, A::AFFINITY, key, about);
        }
        let pods: Table<PodAffinityKey, AffinityEntry> = self.table(names::AFFINITY_PODS)?;
        let pods = pods.entries().map_err(failed(names::AFFINITY_PODS))?;
        let is_own = |key: &PodAffinityKey| key.service.0 == service && key.family == A::VERSION;
        for (key, entry) in pods.iter().filter(|(key, _)| is_own(key)).take(MOST) {
            let about = About::Held(format!("netns:{}", key.netns), entry.backend.0);
            self.put(found, names::AFFINITY_PODS, key, about);
        }
        if found.elements.len() == before {
            found.elements.push(Element {
                map: self.home.join(A::AFFINITY),
                key: None,
                about: About::NobodyHeld(service),
            });
        }
        Ok(())
    }

    fn put_refused(&self, found: &mut Found, service: u32) -> Result<(), DatapathError> {
        let refused = get_pinned(&self.home.join(names::REFUSED), true).and_then(RefusedMap::new);
        let entries = refused.and_then(|refused| refused.entries());
        let mut own: Vec<RefusedKey> = entries
            .map_err(failed(names::REFUSED))?
            .into_iter()
            .map(|(key, _)| key)
            .filter(|key| key.service.0 == service)
            .collect();
        own.sort_unstable_by_key(|key| key.counter);
        for key in own {
            if let Some(counter) = Counter::ALL.get(key.counter as usize) {
                self.put(found, names::REFUSED, &key, About::Refused(*counter));
            }
        }
        Ok(())
    }
}

/// Returns the key of a frontend in the map of frontends; `None` if the frontend is of the other
/// family.
fn key_of<A: Family>(row: &Frontend) -> Option<FrontendKey<A>> {
    const PROTOCOLS: [Protocol; 5] = [
        Protocol::TCP,
        Protocol::UDP,
        Protocol::SCTP,
        Protocol::ANY,
        Protocol::ICMP,
    ];
    let is_of_family = row.ip_family == super::services::family_name::<A>();
    let address = match row.address {
        None => A::UNSPECIFIED,
        Some(address) => A::of_ip(address)?,
    };
    let protocol = PROTOCOLS.into_iter().find(|one| one.name() == row.protocol);
    is_of_family.then_some(FrontendKey::new(
        address,
        Port::from_host(row.port),
        protocol?,
    ))
}
