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

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::V4;

    const NODE: V4 = V4 {
        octets: [192, 0, 2, 1],
    };
    const CLUSTER_IP: V4 = V4 {
        octets: [10, 96, 0, 1],
    };
    const PORT: Port = Port::from_host(80);

    #[derive(Default)]
    struct Maps {
        bits: u64,
        records: HashMap<FrontendKey<V4>, RecordId>,
    }

    impl FrontendMaps<V4> for Maps {
        fn bits(&self, _: Port) -> u64 {
            self.bits
        }
        fn record(&self, key: &FrontendKey<V4>) -> Option<RecordId> {
            self.records.get(key).copied()
        }
        fn serves_node_ports(&self, address: V4) -> bool {
            address == NODE
        }
        fn in_service_range(&self, address: V4) -> bool {
            address.octets[0] == 10
        }
    }

    fn found(maps: &Maps, address: V4) -> Option<u32> {
        find_record(maps, address, PORT, Protocol::TCP).map(|record| record.0)
    }

    /// Returns maps that have every kind of frontend for the port, and all of the port's bits.
    fn full() -> Maps {
        let keys = [
            FrontendKey::new(NODE, PORT, Protocol::TCP),
            FrontendKey::new(CLUSTER_IP, PORT, Protocol::TCP),
            FrontendKey::node_port(PORT, Protocol::TCP),
            FrontendKey::unserved(CLUSTER_IP),
        ];
        Maps {
            bits: ports::FRONTEND | ports::NODE_PORT,
            records: keys.into_iter().zip((1..).map(RecordId)).collect(),
        }
    }

    #[test]
    fn the_exact_frontend_comes_before_node_port_and_unserved_record() {
        let mut maps = full();
        assert_eq!(
            (found(&maps, NODE), found(&maps, CLUSTER_IP)),
            (Some(1), Some(2))
        );
        for address in [NODE, CLUSTER_IP] {
            let exact = FrontendKey::new(address, PORT, Protocol::TCP);
            maps.records.remove(&exact);
        }
        assert_eq!(
            (found(&maps, NODE), found(&maps, CLUSTER_IP)),
            (Some(3), Some(4))
        );
        let elsewhere = [203, 0, 113, 1];
        assert_eq!(found(&maps, V4 { octets: elsewhere }), None);
        maps.bits = 0;
        assert_eq!(
            (found(&maps, NODE), found(&maps, CLUSTER_IP)),
            (None, Some(4))
        );
    }
}
