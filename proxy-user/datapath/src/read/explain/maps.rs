// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The pinned maps of one family, read key by key in the order of the kernel programs.

use std::{collections::BTreeMap, net::IpAddr};

use ipnet::IpNet;
use linux::{LpmKey, now};
use proxy_common::{
    AffinityEntry, AffinityKey, Backend, BackendId, Block, EndpointSet, FrontendKey, Port,
    Protocol, Record, RecordId, ServiceFlags, ServiceId, Settings,
    flow::ClientInterface,
    lookup::{FrontendMaps, find_record},
    maps::{self, interface, node_address},
    masquerade::MasqueradeSources,
    ports,
    service::SourceRangeKey,
    settings::any_contains,
};

use super::AffineEndpoint;
use crate::{
    error::DatapathError,
    maps::{FlowTable, arrays::MappedArray, family::Family, tables::Table},
    read::{Reader, SECOND, failed, socket},
};

/// The maps of one family that decide what happens to a new connection.
pub(super) struct FamilyMaps<A: Family> {
    pub(super) settings: Settings,
    frontends: Table<FrontendKey<A>, u32>,
    records: Table<u32, Record<A>>,
    addresses: Table<A, u32>,
    sources: Table<LpmKey<A>, u32>,
    ports: Table<u32, u64>,
    slots: Table<u32, u32>,
    backends: Table<u32, Backend<A>>,
    affinity: Table<AffinityKey<A>, AffinityEntry>,
    pub(super) flows: FlowTable<A>,
    interfaces: Table<u32, u64>,
    masquerade_sources: Table<u32, MasqueradeSources>,
}

impl<A: Family> FrontendMaps<A> for FamilyMaps<A> {
    fn bits(&self, port: Port) -> u64 {
        let word = self.ports.lookup(&ports::word_of(port.host()));
        let word = word.ok().flatten().unwrap_or(0);
        ports::bits(word, port.host())
    }
    fn record(&self, key: &FrontendKey<A>) -> Option<RecordId> {
        let id = self.frontends.lookup(key).ok().flatten()?;
        let record = self.records.lookup(&id).ok().flatten()?;
        (record.key == *key).then_some(RecordId(id))
    }
    fn serves_node_ports(&self, address: A) -> bool {
        let flags = self.addresses.lookup(&address).ok().flatten();
        flags.is_some_and(|flags| flags & node_address::NODE_PORT != 0)
    }
    fn in_service_range(&self, address: A) -> bool {
        let mut settings = self.settings;
        A::services(&mut settings).contains(address)
    }
}

impl<A: Family> FamilyMaps<A> {
    pub(super) fn open(reader: &Reader) -> Result<Self, DatapathError> {
        Ok(Self {
            settings: reader.settings()?,
            frontends: reader.table(A::FRONTENDS)?,
            records: reader.table(A::RECORDS)?,
            addresses: reader.table(A::NODE_ADDRESSES)?,
            sources: reader.table(A::SOURCE_RANGES)?,
            ports: reader.table(maps::PORTS)?,
            slots: reader.table(maps::SLOTS)?,
            backends: reader.table(A::BACKENDS)?,
            affinity: reader.table(A::AFFINITY)?,
            flows: reader.flow_table()?,
            interfaces: reader.table(maps::INTERFACES)?,
            masquerade_sources: reader.table(maps::MASQUERADE_SOURCES)?,
        })
    }

    /// Returns the record of the frontend at a destination; `None` if no service is there.
    pub(super) fn find(
        &self,
        address: A,
        port: Port,
        protocol: Protocol,
    ) -> Result<Option<Record<A>>, DatapathError> {
        match find_record(self, address, port, protocol) {
            Some(id) => self.records.lookup(&id.0).map_err(failed(A::RECORDS)),
            None => Ok(None),
        }
    }

    pub(super) fn is_node_address(&self, address: A) -> bool {
        self.addresses.lookup(&address).ok().flatten().is_some()
    }

    /// True if an address lies in a range from which cluster IPs are allocated. Packets to such an
    /// address are dropped if no service has it.
    pub(super) fn is_unallocated(&self, address: A) -> bool {
        let allocated: IpAddr = address.into();
        let is_in_range = match allocated {
            IpAddr::V4(v4) => any_contains(&self.settings.allocated_v4, v4.into()),
            IpAddr::V6(v6) => any_contains(&self.settings.allocated_v6, v6.into()),
        };
        is_in_range && self.in_service_range(address) && !self.is_node_address(address)
    }

    pub(super) fn is_in_pod_ranges(&self, address: A) -> bool {
        match address.into() {
            IpAddr::V4(v4) => any_contains(&self.settings.pods_v4, v4.into()),
            IpAddr::V6(v6) => any_contains(&self.settings.pods_v6, v6.into()),
        }
    }

    /// Returns the node's InternalIP of this family; the unspecified address if it is not known.
    pub(super) fn internal_address(&self) -> A {
        A::internal(&self.settings)
    }

    /// True if the service's source ranges allow this client, or if it has no source ranges.
    pub(super) fn allows(&self, record: &Record<A>, client: A) -> Result<bool, DatapathError> {
        if !record.flags.has(ServiceFlags::SOURCE_RANGES) {
            return Ok(true);
        }
        let key = LpmKey {
            prefix: 32 + A::BITS,
            data: SourceRangeKey {
                service: record.service,
                address: client,
            },
        };
        let found = self
            .sources
            .lookup(&key)
            .map_err(failed(A::SOURCE_RANGES))?;
        Ok(found.is_some())
    }

    pub(super) fn source_ranges(&self, service: ServiceId) -> Result<Vec<IpNet>, DatapathError> {
        let all = self.sources.entries().map_err(failed(A::SOURCE_RANGES))?;
        let own = all.iter().filter(|(key, _)| key.data.service == service);
        let mut ranges: Vec<_> = own.filter_map(|(key, _)| A::range_of(key)).collect();
        ranges.sort_unstable();
        Ok(ranges)
    }

    /// Returns the backends in a block's slots, each with the number of its slots.
    pub(super) fn block(&self, block: Block) -> Result<Vec<(Backend<A>, u32)>, DatapathError> {
        let mut owned: BTreeMap<u32, u32> = BTreeMap::new();
        for slot in block.first()..block.first() + block.count() {
            let id = self.slots.lookup(&slot).map_err(failed(maps::SLOTS))?;
            *owned.entry(id.unwrap_or(0)).or_default() += 1;
        }
        let mut found = Vec::new();
        for (id, slots) in owned {
            found.extend(self.backend(BackendId(id))?.map(|backend| (backend, slots)));
        }
        Ok(found)
    }

    pub(super) fn backend(&self, id: BackendId) -> Result<Option<Backend<A>>, DatapathError> {
        self.backends.lookup(&id.0).map_err(failed(A::BACKENDS))
    }

    /// Returns every backend of a service port. Walks through the memory-mapped array of backends,
    /// because there may be hundreds of thousands of them.
    pub(super) fn backends_of(
        &self,
        reader: &Reader,
        service: ServiceId,
    ) -> Result<Vec<Backend<A>>, DatapathError> {
        let array: MappedArray<Backend<A>> = reader.array(A::BACKENDS)?;
        let mut found = Vec::new();
        let scanned = array.scan(|_, backend| {
            found.extend((backend.service == service).then_some(backend));
            false
        });
        scanned.map_err(failed(A::BACKENDS))?;
        Ok(found)
    }

    /// Returns the backend that a client has affinity to; `None` if the client has no affinity, or
    /// if the backend no longer serves or is not in this set.
    pub(super) fn held(
        &self,
        record: &Record<A>,
        client: A,
        set: EndpointSet,
    ) -> Result<Option<AffineEndpoint>, DatapathError> {
        if !record.flags.has(ServiceFlags::AFFINITY) {
            return Ok(None);
        }
        let key = AffinityKey {
            service: record.service,
            client,
        };
        let now = now();
        let entry = self.affinity.lookup(&key).map_err(failed(A::AFFINITY))?;
        let Some(entry) = entry.filter(|entry| entry.holds(&key, record.affinity_timeout, now))
        else {
            return Ok(None);
        };
        let backend = self.backend(entry.backend)?.filter(|backend| {
            backend.is_current(record.service, entry.generation) && backend.sets.intersects(set)
        });
        let used = now.saturating_sub(entry.last_used) / SECOND;
        Ok(backend.map(|backend| AffineEndpoint {
            endpoint: socket(backend.address, backend.port),
            seconds_left: u64::from(record.affinity_timeout).saturating_sub(used),
        }))
    }

    /// Returns the interface with this index as flow keys contain it.
    pub(super) fn client_interface(&self, index: u32) -> ClientInterface {
        if self.interface_bits(index) & interface::SHARED != 0 {
            ClientInterface::SHARED
        } else {
            ClientInterface::of_pod(index)
        }
    }

    pub(super) fn has_pods(&self, index: u32) -> bool {
        self.interface_bits(index) & interface::PODS != 0
    }

    fn interface_bits(&self, index: u32) -> u32 {
        let word = self.interfaces.lookup(&index).ok().flatten();
        interface::bits(word.unwrap_or(0))
    }

    /// Returns the source address that a masqueraded packet gets when it leaves the interface with
    /// this index to this next hop and destination; `None` if the maps do not know it.
    pub(super) fn masquerade_address(
        &self,
        index: u32,
        next_hop: IpAddr,
        destination: IpAddr,
    ) -> Result<Option<IpAddr>, DatapathError> {
        let index = self.interface_bits(index) & interface::SOURCE;
        let failed = failed(maps::MASQUERADE_SOURCES);
        let own = self.masquerade_sources.lookup(&index).map_err(failed)?;
        let own = own.and_then(|own| {
            A::of_ip(match (A::VERSION, next_hop, destination) {
                (4, IpAddr::V4(next_hop), _) => own.v4.select(&next_hop.into()).into(),
                // The next hop of an IPv4 packet may be an IPv6 gateway.
                (4, _, IpAddr::V4(to)) => own.v4.select(&to.into()).into(),
                (_, _, IpAddr::V6(to)) => own.v6.select(&to.into()).into(),
                _ => return None,
            })
        });
        let address = own
            .filter(|own| *own != A::UNSPECIFIED)
            .unwrap_or_else(|| self.internal_address());
        Ok((address != A::UNSPECIFIED).then(|| address.into()))
    }
}
