// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the API server of a fleet has: services with one EndpointSlice each, as controllers write
//! them, a Node for each agent; and how a changed one tells the number of its change. Pure.

use std::{net::Ipv4Addr, ops::Range};

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use crate::{
    load::records::{self, NAMESPACE},
    node::api_server::Record,
};

/// How many endpoints a full slice has: the default of the controller that makes slices.
pub const FULL: u32 = 100;
/// The namespace of all objects, and the names of the slice and the service that are changed.
/// xtask/go/informers/agent.go knows the names too.
pub const MARKED_NAMESPACE: &str = NAMESPACE;
pub const MARKED_SLICE: &str = "s0-a";
pub const MARKED_SERVICE: &str = "s0";
/// The service's port tells the number of its last change: it is this much higher.
pub(super) const FIRST_PORT: u16 = 10_000;
/// The controller that writes slices.
pub(super) const MANAGER: &str = "kube-controller-manager";

/// Returns the number of endpoints of each service: half of all are in full slices, the others are
/// spread over the remaining services. Index: the service's number.
pub fn sizes(services: u32, endpoints: u32) -> Result<Vec<u32>> {
    ensure!(
        services > 1 && (services..=50 * services).contains(&endpoints),
        "{services} services cannot have {endpoints} endpoints here: choose at least 2 services, and 1 to 50 times as many endpoints"
    );
    let full = (endpoints / 2 / FULL).max(1);
    let others = services - full;
    let rest = endpoints.saturating_sub(full * FULL).max(others);
    let size = |number: u32| {
        if number < full {
            FULL
        } else {
            rest / others + u32::from(number - full < rest % others)
        }
    };
    Ok((0..services).map(size).collect())
}

/// Returns the etcd records of all services and of the agents' nodes.
pub(super) fn records(sizes: &[u32], nodes: u32) -> Vec<Record> {
    let mut records: Vec<_> = (0..nodes).map(node).collect();
    let mut first = 0;
    for (number, size) in (0..).zip(sizes) {
        records.extend(records::of_service(number).map(|record| managed(record, "kubectl-create")));
        records.push(slice(number, first..first + size));
        first += size;
    }
    records
}

fn node(number: u32) -> Record {
    let name = node_name(number);
    let value = json!({
        "kind": "Node", "apiVersion": "v1",
        "metadata": {
            "name": name, "uid": uid(9, number), "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"kubernetes.io/hostname": name, "topology.kubernetes.io/zone": zone(number)}
        },
        "spec": {},
        "status": {"addresses": [{"type": "InternalIP", "address": Ipv4Addr::from(0x0afb_0000 + number)}]}
    });
    Record {
        key: format!("/registry/minions/{name}"),
        value: Some(value),
    }
}

/// Returns the name of an agent's node.
pub fn node_name(number: u32) -> String {
    format!("node-{number}")
}

fn slice(number: u32, endpoints: Range<u32>) -> Record {
    let endpoints = endpoints.map(|number| endpoint(address(number), number));
    let mut record = records::of_slice(number, endpoints.collect());
    if let Some(slice) = &mut record.value {
        let service = format!("s{number}");
        let metadata = &mut slice["metadata"];
        metadata["generateName"] = json!(format!("{service}-"));
        metadata["labels"]["endpointslice.kubernetes.io/managed-by"] =
            json!("endpointslice-controller.k8s.io");
        metadata["annotations"] = trigger(&"2026-01-01T00:00:00Z");
        metadata["ownerReferences"] = json!([{
            "apiVersion": "v1", "kind": "Service", "name": service, "uid": uid(1, number),
            "controller": true, "blockOwnerDeletion": true
        }]);
    }
    managed(record, MANAGER)
}

pub(super) fn trigger(time: &impl ToString) -> Value {
    json!({"endpoints.kubernetes.io/last-change-trigger-time": time.to_string()})
}

/// Adds what the API server remembers of the writer of an object's fields. Agents are sent it with
/// every object.
fn managed(mut record: Record, manager: &str) -> Record {
    let fields = if manager == MANAGER {
        json!({
            "f:addressType": {}, "f:endpoints": {}, "f:ports": {},
            "f:metadata": {
                "f:annotations": {".": {}, "f:endpoints.kubernetes.io/last-change-trigger-time": {}},
                "f:generateName": {},
                "f:labels": {
                    ".": {}, "f:endpointslice.kubernetes.io/managed-by": {},
                    "f:kubernetes.io/service-name": {}
                },
                "f:ownerReferences": {".": {}}
            }
        })
    } else {
        json!({"f:spec": {
            "f:internalTrafficPolicy": {}, "f:sessionAffinity": {}, "f:type": {},
            "f:ports": {".": {}, "k:{\"port\":80,\"protocol\":\"TCP\"}": {
                ".": {}, "f:port": {}, "f:protocol": {}, "f:targetPort": {}
            }}
        }})
    };
    if let Some(object) = &mut record.value {
        object["metadata"]["managedFields"] = json!([{
            "manager": manager, "operation": "Update", "apiVersion": object["apiVersion"],
            "time": "2026-01-01T00:00:00Z", "fieldsType": "FieldsV1", "fieldsV1": fields
        }]);
    }
    record
}

/// Returns an endpoint as the controller writes it for a pod. Its `number` chooses pod and node.
pub(super) fn endpoint(address: Ipv4Addr, number: u32) -> Value {
    json!({
        "addresses": [address],
        "conditions": {"ready": true, "serving": true, "terminating": false},
        "nodeName": node_name(number % 5_000),
        "targetRef": {
            "kind": "Pod", "namespace": NAMESPACE, "name": format!("app-6d5f7c9b8d-{number:06}"),
            "uid": uid(4, number)
        },
        "zone": zone(number)
    })
}

fn zone(number: u32) -> String {
    format!("region-1{}", ["a", "b", "c"][number as usize % 3])
}

fn uid(kind: u32, number: u32) -> String {
    format!("{kind:08}-0000-4000-8000-{number:012}")
}

/// Returns the address of an endpoint of no change. There are addresses for 16 million.
pub(super) fn address(number: u32) -> Ipv4Addr {
    (0x0a00_0000 + number).into()
}

/// Returns the address that tells the number of a change. xtask/go/informers/main.go reads it too.
pub(super) fn address_of_mark(mark: u16) -> Ipv4Addr {
    let [high, low] = mark.to_be_bytes();
    Ipv4Addr::new(10, 250, high, low)
}

/// Returns the number of the change that an endpoint's address tells; None if it tells none.
pub fn mark_of_address(address: Ipv4Addr) -> Option<u16> {
    match address.octets() {
        [10, 250, high, low] => Some(u16::from_be_bytes([high, low])),
        _ => None,
    }
}

/// Returns the number of the change that a service's port tells; None if it tells none.
pub fn mark_of_port(port: u16) -> Option<u16> {
    port.checked_sub(FIRST_PORT).filter(|mark| *mark > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_the_endpoints_are_in_full_slices() {
        let all = sizes(10_000, 100_000).expect("possible");
        assert_eq!(all.len(), 10_000);
        assert_eq!(all.iter().sum::<u32>(), 100_000);
        assert_eq!(all.iter().filter(|size| **size == FULL).count(), 500);
        assert_eq!(
            (all.iter().min(), all[500], all[9_999]),
            (Some(&5), 6, 5),
            "the others are spread evenly"
        );
    }

    #[test]
    fn a_small_cluster_has_one_full_slice_and_no_service_without_endpoints() {
        let all = sizes(20, 40).expect("possible");
        assert_eq!(all[0], FULL);
        assert!(all[1..].iter().all(|size| *size == 1), "{all:?}");
        assert_eq!(sizes(20, 200).expect("possible").iter().sum::<u32>(), 200);
    }

    #[test]
    fn a_slice_never_has_more_endpoints_than_a_full_one() {
        for services in [2, 20, 999] {
            let all = sizes(services, 50 * services).expect("possible");
            assert!(all.iter().all(|size| *size <= FULL), "{services}: {all:?}");
        }
        sizes(20, 1_001).expect_err("too many");
        sizes(20, 19).expect_err("too few");
        sizes(1, 10).expect_err("one service");
    }

    #[test]
    fn only_the_address_or_port_of_a_change_tells_its_number() {
        for mark in [1, 255, 256, u16::MAX] {
            assert_eq!(mark_of_address(address_of_mark(mark)), Some(mark));
        }
        assert_eq!(mark_of_address(address(99_999)), None);
        assert_eq!(mark_of_port(FIRST_PORT + 7), Some(7));
        assert_eq!([80, FIRST_PORT].map(mark_of_port), [None, None]);
    }
}
