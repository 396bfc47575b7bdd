// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Finds the record of the service that a destination belongs to: in which order frontends are
//! looked up. The kernel programs pass their maps in.

use crate::{Addr, FrontendKey, Port, Protocol, RecordId, ports};

/// The map look-ups that [`find_record`] needs.
pub trait FrontendMaps<A> {
    /// Returns the port's bits in the `ports` map.
    fn bits(&self, port: Port) -> u64;
    /// Returns the value of this key in the map `frontends`; None if the key does not exist.
    fn record(&self, key: &FrontendKey<A>) -> Option<RecordId>;
    /// Whether node ports are served on this address.
    fn serves_node_ports(&self, address: A) -> bool;
    /// Whether the address lies in the ranges of cluster IPs.
    fn in_service_range(&self, address: A) -> bool;
}

/// Returns the record of a destination: the record of its address and port; else, for a node
/// address, the record of the node port; else, for a cluster IP, the record that rejects unserved
/// ports. None if the destination belongs to no service.
#[inline(always)]
pub fn find_record<A: Addr>(
    maps: &impl FrontendMaps<A>,
    address: A,
    port: Port,
    protocol: Protocol,
) -> Option<RecordId> {
    let bits = maps.bits(port);
    if bits & ports::FRONTEND != 0
        && let Some(record) = maps.record(&FrontendKey::new(address, port, protocol))
    {
        return Some(record);
    }
    if bits & ports::NODE_PORT != 0
        && maps.serves_node_ports(address)
        && let Some(record) = maps.record(&FrontendKey::node_port(port, protocol))
    {
        return Some(record);
    }
    guard_of(maps, address)
}

/// Returns the record that rejects the unserved ports of a cluster IP; None if the address is no
/// cluster IP.
#[inline(always)]
pub fn guard_of<A: Addr>(maps: &impl FrontendMaps<A>, address: A) -> Option<RecordId> {
    if !maps.in_service_range(address) {
        return None;
    }
    maps.record(&FrontendKey::unserved(address))
}
