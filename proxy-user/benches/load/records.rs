// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Services and slices as an API server keeps them in etcd, with every default filled in.

use serde_json::{Value, json};

use super::objects::{NAMESPACE, PORT, address_of, endpoints_of};
use crate::support::api_server::Record;

/// What a service consists of: itself, its claim on the cluster IP, its slice.
pub(crate) fn of(number: u32, endpoints: u32) -> [Record; 3] {
    [
        record(service_key(number), service(number)),
        record(claim_key(number), claim(number)),
        slice(number, endpoints_of(0, endpoints)),
    ]
}

/// The slice alone.
pub(crate) fn slice(number: u32, endpoints: Value) -> Record {
    let mut metadata = metadata(&format!("s{number}-a"), uid(SLICE, number));
    metadata["labels"] = json!({"kubernetes.io/service-name": format!("s{number}")});
    let object = json!({
        "kind": "EndpointSlice", "apiVersion": "discovery.k8s.io/v1", "metadata": metadata,
        "addressType": "IPv4", "ports": [{"name": "", "protocol": "TCP", "port": PORT}], "endpoints": endpoints
    });
    record(slice_key(number), object)
}

/// The removal of all that.
pub(crate) fn none_of(number: u32) -> [Record; 3] {
    [slice_key(number), claim_key(number), service_key(number)]
        .map(|key| Record { key, value: None })
}

const SERVICE: u32 = 1;
const CLAIM: u32 = 2;
const SLICE: u32 = 3;

fn service(number: u32) -> Value {
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

/// Without it the server would make one itself, some day, and complain.
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

fn metadata(name: &str, uid: String) -> Value {
    json!({
        "name": name, "namespace": NAMESPACE, "uid": uid, "generation": 1,
        "creationTimestamp": "2026-01-01T00:00:00Z"
    })
}

fn uid(kind: u32, number: u32) -> String {
    format!("{kind:08}-0000-4000-8000-{number:012}")
}

fn record(key: String, object: Value) -> Record {
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
