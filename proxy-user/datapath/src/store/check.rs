// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Compares a service with the maps and repairs what applying its plan again would not. An apply
//! reads back records, slots and backends, but trusts that hash maps, ids and port bits are as it
//! has left them. Called by `Datapath`.

use std::{io, mem::offset_of};

use control::object::ObjectName;
use proxy_common::{Backend, Port, Record, RecordId, ServiceId, V4, V6, maps as names, ports};

use super::{
    apply::Store,
    commit::port_bit,
    maps::Maps,
    state::{PortState, ServiceState, Stored},
};
use crate::{Datapath, error::DatapathError, maps::service_name};

impl Datapath {
    /// Returns the names of up to `count` services in the maps. Repeated calls with the same
    /// `cursor`, first 0, go through all of them again and again.
    pub fn some_services(&self, cursor: &mut usize, count: usize) -> Vec<ObjectName> {
        let names = self.store.services.keys().skip(*cursor).take(count);
        let names: Vec<_> = names.cloned().collect();
        *cursor = if names.len() < count {
            0
        } else {
            *cursor + count
        };
        names
    }

    /// Restores those elements of a service in the hash maps that somebody has changed; returns how
    /// many. Its elements in arrays are compared when its plan is applied again.
    pub fn repair_service(&mut self, name: &ObjectName) -> Result<usize, DatapathError> {
        repair(&self.store, name).map_err(DatapathError::of_map("check", names::FRONTENDS_V4))
    }
}

fn repair(store: &Store, name: &ObjectName) -> io::Result<usize> {
    let Some(state) = store.services.get(name) else {
        return Ok(0);
    };
    let maps = &store.maps;
    let mut written = 0;
    for port in &state.ports {
        written += repair_name(maps, name, port)?;
        written += repair_port::<V4>(maps, port)? + repair_port::<V6>(maps, port)?;
    }
    Ok(written + repair_guards::<V4>(maps, state)? + repair_guards::<V6>(maps, state)?)
}

fn repair_name(maps: &Maps, name: &ObjectName, port: &PortState) -> io::Result<usize> {
    let wanted = service_name(name, &port.name, port.port, port.protocol);
    // Port number 0 means that the kernel refused the name: the next apply writes it again.
    if port.port == Port::ANY || maps.names.lookup(&port.id.0)? == Some(wanted) {
        return Ok(0);
    }
    maps.names.update(&port.id.0, &wanted)?;
    Ok(1)
}

fn repair_port<A: Stored>(maps: &Maps, port: &PortState) -> io::Result<usize> {
    let (family, state) = (A::maps(maps), &port.families[A::AT]);
    let mut written = 0;
    for id in &state.frontends {
        written += repair_frontend::<A>(maps, *id, port.id)?;
    }
    for id in &state.backends {
        let backend = family.backends.load(id.0);
        if backend.service != port.id {
            let field = offset_of!(Backend<A>, service);
            family.backends.store_u32(id.0, field, port.id.0);
            written += 1;
        }
        written += maps.ports.announce(backend.port, ports::BACKEND);
    }
    for range in &port.source_ranges {
        let Some(key) = A::source_range(port.id, range) else {
            continue;
        };
        if family.sources.lookup(&key)? != Some(1) {
            family.sources.update(&key, &1)?;
            written += 1;
        }
    }
    Ok(written)
}

fn repair_guards<A: Stored>(maps: &Maps, state: &ServiceState) -> io::Result<usize> {
    let Some(first) = state.ports.first() else {
        return Ok(0);
    };
    let guards = state.guards[A::AT].iter();
    guards
        .map(|id| repair_frontend::<A>(maps, *id, first.id))
        .sum()
}

/// Repairs the element of a frontend, and its record's service id. Skips a record whose key should
/// lead to another one: an apply finds that.
fn repair_frontend<A: Stored>(maps: &Maps, id: RecordId, service: ServiceId) -> io::Result<usize> {
    let family = A::maps(maps);
    let record = family.records.load(id.0);
    if family.index.get(&record.key) != Some(&id) {
        return Ok(0);
    }
    let mut written = 0;
    if let Some(bit) = port_bit(record.flags.kind()) {
        written += maps.ports.announce(record.key.port, bit);
    }
    if record.service != service {
        let field = offset_of!(Record<A>, service);
        family.records.store_u32(id.0, field, service.0);
        written += 1;
    }
    if family.frontends.lookup(&record.key)? != Some(id.0) {
        family.frontends.update(&record.key, &id.0)?;
        written += 1;
    }
    Ok(written)
}
