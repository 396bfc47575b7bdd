// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Services and EndpointSlices as an API server stores them in etcd, with all defaults filled in.

use std::net::{Ipv4Addr, SocketAddr};

use serde_json::{Value, json};

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

/// Returns the etcd records of a service: the Service, the claim on its cluster IP (IPAddress), the
/// EndpointSlice.
pub(super) fn of(number: u32, endpoints: u32) -> [Record; 3] {
    let [service, claim] = of_service(number);
    [service, claim, of_slice(number, endpoints_of(0, endpoints))]
}

/// Returns the etcd records of a Service and of the claim on its cluster IP.
pub fn of_service(number: u32) -> [Record; 2] {
    [
        record(service_key(number), service(number)),
        record(claim_key(number), claim(number)),
    ]
}

/// Returns the etcd record of the EndpointSlice alone.
pub fn of_slice(number: u32, endpoints: Value) -> Record {
    record(slice_key(number), slice(number, endpoints))
}

pub(super) fn slice(number: u32, endpoints: Value) -> Value {
    let mut metadata = metadata(&format!("s{number}-a"), uid(SLICE, number));
    metadata["labels"] = json!({"kubernetes.io/service-name": format!("s{number}")});
    json!({
        "kind": "EndpointSlice", "apiVersion": "discovery.k8s.io/v1", "metadata": metadata,
        "addressType": "IPv4", "ports": [{"name": "", "protocol": "TCP", "port": PORT}], "endpoints": endpoints
    })
}

/// Returns records that remove the three etcd records of a service.
pub(super) fn none_of(number: u32) -> [Record; 3] {
    [slice_key(number), claim_key(number), service_key(number)]
        .map(|key| Record { key, value: None })
}

const SERVICE: u32 = 1;
const CLAIM: u32 = 2;
const SLICE: u32 = 3;

pub(super) fn service(number: u32) -> Value {
    let address = address_of(number).ip();
    json!({
        "kind": "Service", "apiVersion": "v1", "metadata": metadata(&format!("s{number}"), uid(SERVICE, number)),
        "spec": {
            "type": "ClusterIP", "clusterIP": address, "clusterIPs": [address],
            "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack",
            "sessionAffinity": "None", "internalTrafficPolicy": "Cluster",
            "ports": [{"protocol": "TCP", "port": 80, "targetPort": PORT}]
        },
        "status": {"loadBalancer": {}}
    })
}

/// Returns the IPAddress object that claims the cluster IP for a service. Without it the API server
/// would log an error and create it later.
fn claim(number: u32) -> Value {
    let address = address_of(number).ip().to_string();
    let mut metadata = metadata(&address, uid(CLAIM, number));
    _ = metadata
        .as_object_mut()
        .expect("made above")
        .remove("namespace");
    metadata["labels"] = json!({
        "ipaddress.kubernetes.io/ip-family": "IPv4",
        "ipaddress.kubernetes.io/managed-by": "ipallocator.k8s.io"
    });
    json!({
        "kind": "IPAddress", "apiVersion": "networking.k8s.io/v1", "metadata": metadata,
        "spec": {"parentRef": {"resource": "services", "namespace": NAMESPACE, "name": format!("s{number}")}}
    })
}

pub(super) fn metadata(name: &str, uid: String) -> Value {
    json!({
        "name": name, "namespace": NAMESPACE, "uid": uid, "generation": 1,
        "creationTimestamp": "2026-01-01T00:00:00Z"
    })
}

pub(super) fn uid(kind: u32, number: u32) -> String {
    format!("{kind:08}-0000-4000-8000-{number:012}")
}

pub(super) fn record(key: String, object: Value) -> Record {
    Record {
        key,
        value: Some(object),
    }
}

fn service_key(number: u32) -> String {
    format!("/registry/services/specs/{NAMESPACE}/s{number}")
}
fn claim_key(number: u32) -> String {
    format!("/registry/ipaddresses/{}", address_of(number).ip())
}
fn slice_key(number: u32) -> String {
    format!("/registry/endpointslices/{NAMESPACE}/s{number}-a")
}

/// Returns the endpoints of an EndpointSlice: first the pod `TARGETS[target]`, then other addresses
/// of its range, which need no pod. In total `count`.
pub(super) fn endpoints_of(target: usize, count: u32) -> Value {
    let others = (0..count)
        .filter(|number| *number as usize != target)
        .take(count as usize - 1);
    let addresses = std::iter::once(TARGETS[target].to_owned())
        .chain(others.map(|number| format!("10.40.1.{}", 20 + number)));
    addresses
        .map(|address| json!({"addresses": [address], "nodeName": "node-a", "conditions": {"ready": true}}))
        .collect()
}
