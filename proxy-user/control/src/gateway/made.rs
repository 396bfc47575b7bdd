// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The Service of type LoadBalancer that is made for a Gateway without addresses, whose addresses
//! the Gateway then has. A pure function.

use serde_json::{Value, json};

use super::{addresses::Addressed, build::Built, names};
use crate::model::{
    Gateway, ServicePort,
    gateway::{ANNOTATION_APPLIED, LABEL_GATEWAY},
};

/// KUBE: the label by which tools find what was made for a Gateway.
const LABEL_NAME: &str = "gateway.networking.k8s.io/gateway-name";
/// The most bytes of a label's value.
const MAX_LABEL: usize = 63;

/// What is to become of the Service that may be made for a Gateway.
pub(super) enum Wanted {
    /// It is to be like this, with this hash in its annotation.
    Applied(Value, String),
    /// It stays as it is, if it exists: with it its address would go, and what keeps the Gateway
    /// from being served may be mended soon.
    Kept,
    Gone,
}

/// Returns what is to become of the Service of a Gateway of ours.
pub(super) fn wanted(gateway: &Gateway, built: &Built) -> Wanted {
    let ports = &built.served.service.ports;
    match built.addresses.from {
        Addressed::Itself => return Wanted::Gone,
        Addressed::Unknown => return Wanted::Kept,
        Addressed::ByService if ports.is_empty() || gateway.uid.is_empty() => return Wanted::Kept,
        Addressed::ByService => {}
    }
    let name = &gateway.id.name;
    let made = names::made_for(name);
    let ports: Vec<_> = ports
        .iter()
        .map(|port| {
            json!({
                "name": port_name(port),
                "port": port.port.host(),
                "protocol": port.protocol.name(),
            })
        })
        .collect();
    let mut labels = json!(gateway.infrastructure.labels);
    labels[LABEL_GATEWAY] = json!(&*made.name);
    if name.name.len() <= MAX_LABEL {
        labels[LABEL_NAME] = json!(&*name.name);
    }
    let mut service = json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": &*made.name,
            "namespace": &*made.namespace,
            "labels": labels,
            "annotations": gateway.infrastructure.annotations,
            "ownerReferences": owners(gateway),
        },
        "spec": {"type": "LoadBalancer", "ports": ports},
    });
    let hash = names::digest(&service.to_string())[..16].to_owned();
    service["metadata"]["annotations"][ANNOTATION_APPLIED] = json!(hash);
    Wanted::Applied(service, hash)
}

/// Returns the name of a port of the Service, such as `tcp-80`.
pub(super) fn port_name(port: &ServicePort) -> String {
    let protocol = port.protocol.name().to_lowercase();
    format!("{protocol}-{}", port.port.host())
}

/// Returns the owner references of what is made for a Gateway.
pub(super) fn owners(gateway: &Gateway) -> Value {
    json!([{
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "Gateway",
        "name": &*gateway.id.name.name,
        "uid": &*gateway.uid,
        "controller": true,
        "blockOwnerDeletion": false,
    }])
}
