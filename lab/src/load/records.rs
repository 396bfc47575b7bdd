// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Services and EndpointSlices as an API server stores them in etcd, with all defaults filled in.

use std::net::{Ipv4Addr, SocketAddr};

use serde_json::{Value, json};

use super::manifests::{self, Port};
use crate::node::etcd::Record;

/// The addresses of the pods on the node in which servers run, and the servers' port.
pub const TARGETS: [&str; 2] = ["10.40.1.20", "10.40.1.21"];
pub const PORT: u16 = 8080;

pub const NAMESPACE: &str = "default";

/// Returns the cluster IP and port of a service, by its number.
pub fn address_of(service: u32) -> SocketAddr {
    let block = service / 250 + 1;
    let [second, third, fourth] =
        [30 + block / 256, block % 256, service % 250 + 1].map(|part| part as u8);
    (Ipv4Addr::new(172, second, third, fourth), 80).into()
}

/// Returns a service's namespace and name as one text.
pub fn name_of(service: u32) -> String {
    format!("{NAMESPACE}/s{service}")
}

/// Returns the `number`-th service in an order that is spread over all services. The factor is
/// prime, so every service comes up, unless the number of services is a multiple of the factor.
pub fn spread(number: u32, services: u32) -> u32 {
    (u64::from(number) * 7919 % u64::from(services)) as u32
}

/// Returns the etcd records of a service: Service, the claim on its cluster IP, EndpointSlice.
pub(super) fn of(number: u32, endpoints: u32) -> [Record; 3] {
    let [service_key, claim_key, _] = keys(number);
    [
        record(service_key, service(number)),
        record(claim_key, claim(number)),
        of_slice(number, endpoints_of(0, endpoints)),
    ]
}

/// Returns the etcd record of the EndpointSlice alone.
pub fn of_slice(number: u32, endpoints: Vec<Value>) -> Record {
    let [_, _, key] = keys(number);
    record(key, slice(number, endpoints))
}

/// Returns records that remove the three etcd records of a service.
pub(super) fn none_of(number: u32) -> [Record; 3] {
    keys(number).map(|key| Record { key, value: None })
}

const PORTS: [Port<'static>; 1] = [Port::new(("", "TCP"), [80, PORT], None)];

pub(super) fn slice(number: u32, endpoints: Vec<Value>) -> Value {
    let slice = manifests::slice(&format!("s{number}"), &PORTS, endpoints);
    stored(slice, 3, number)
}

pub(super) fn service(number: u32) -> Value {
    let address = address_of(number).ip();
    let spec = json!({
        "type": "ClusterIP", "clusterIP": address, "clusterIPs": [address],
        "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack",
        "sessionAffinity": "None", "internalTrafficPolicy": "Cluster"
    });
    let mut service = manifests::service(&format!("s{number}"), &PORTS, spec);
    service["status"] = json!({"loadBalancer": {}});
    stored(service, 1, number)
}

/// Returns the IPAddress object that claims the cluster IP for a service. Without it the API server
/// would log an error and create it later.
fn claim(number: u32) -> Value {
    let labels = json!({
        "ipaddress.kubernetes.io/ip-family": "IPv4",
        "ipaddress.kubernetes.io/managed-by": "ipallocator.k8s.io"
    });
    let owner =
        json!({"resource": "services", "namespace": NAMESPACE, "name": format!("s{number}")});
    let claim = json!({
        "kind": "IPAddress", "apiVersion": "networking.k8s.io/v1",
        "metadata": {"name": address_of(number).ip(), "labels": labels}, "spec": {"parentRef": owner}
    });
    stored(claim, 2, number)
}

/// Adds what the API server adds to an object. `kind` is a number for the kind of object.
fn stored(mut object: Value, kind: u32, number: u32) -> Value {
    object["metadata"]["uid"] = format!("{kind:08}-0000-4000-8000-{number:012}").into();
    object["metadata"]["generation"] = 1.into();
    object["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z".into();
    object
}

fn record(key: String, object: Value) -> Record {
    Record {
        key,
        value: Some(object),
    }
}

/// Returns the keys of a service's records.
fn keys(number: u32) -> [String; 3] {
    [
        format!("services/specs/{NAMESPACE}/s{number}"),
        format!("ipaddresses/{}", address_of(number).ip()),
        format!("endpointslices/{NAMESPACE}/s{number}-a"),
    ]
    .map(|key| format!("/registry/{key}"))
}

/// Returns the endpoints of an EndpointSlice: first the pod `TARGETS[target]`, then other addresses
/// of its range, which need no pod. In total `count`.
pub(super) fn endpoints_of(target: usize, count: u32) -> Vec<Value> {
    let others = (0..count).filter(|number| *number as usize != target);
    let others = others.map(|number| format!("10.40.1.{}", 20 + number));
    let addresses = std::iter::once(TARGETS[target].to_owned()).chain(others);
    let addresses = addresses.take(count as usize);
    addresses
        .map(|address| manifests::endpoint(&address, "node-a"))
        .collect()
}
