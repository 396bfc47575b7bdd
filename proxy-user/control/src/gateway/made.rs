// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The Service of type LoadBalancer that is made for a Gateway without addresses, whose addresses
//! the Gateway then has. A pure function.

use serde_json::{Value, json};

use super::{build::Built, names};
use crate::model::{
    Gateway,
    gateway::{ANNOTATION_APPLIED, LABEL_GATEWAY},
};

/// KUBE: the label by which tools find what was made for a Gateway.
const LABEL_NAME: &str = "gateway.networking.k8s.io/gateway-name";
/// The most bytes of a label's value.
const MAX_LABEL: usize = 63;

/// Returns the Service that a Gateway wants, and its hash for the annotation; None if it wants
/// none.
pub(super) fn wanted(gateway: &Gateway, built: &Built) -> Option<(Value, String)> {
    let ports = &built.served.service.ports;
    if !built.wants_service || ports.is_empty() || gateway.uid.is_empty() {
        return None;
    }
    let name = &gateway.id.name;
    let made = names::made_for(name);
    let ports: Vec<_> = ports
        .iter()
        .map(|port| {
            let (number, protocol) = (port.port.host(), port.protocol.name());
            json!({
                "name": format!("{}-{number}", protocol.to_lowercase()),
                "port": number,
                "protocol": protocol,
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
            "ownerReferences": [{
                "apiVersion": "gateway.networking.k8s.io/v1",
                "kind": "Gateway",
                "name": &*name.name,
                "uid": &*gateway.uid,
                "controller": true,
                "blockOwnerDeletion": false,
            }],
        },
        "spec": {"type": "LoadBalancer", "ports": ports},
    });
    let hash = names::digest(&service.to_string())[..16].to_owned();
    service["metadata"]["annotations"][ANNOTATION_APPLIED] = json!(hash);
    Some((service, hash))
}
