// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The Service of type LoadBalancer that is made for a Gateway without addresses, whose addresses
//! the Gateway then has, and whether something that was made is as it is wanted. Pure functions.

use serde_json::{Value, json};

use super::{addresses::Addressed, build::Built, names};
use crate::model::{Gateway, ServicePort, gateway::LABEL_GATEWAY};

/// KUBE: the label by which tools find what was made for a Gateway.
const LABEL_NAME: &str = "gateway.networking.k8s.io/gateway-name";
/// The most bytes of a label's value.
const MAX_LABEL: usize = 63;

/// What is to become of the Service that may be made for a Gateway.
pub(super) enum Wanted {
    /// It is to be like this.
    Applied(Value),
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
    Wanted::Applied(json!({
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
    }))
}

/// Whether a Service or EndpointSlice is as it is wanted. Others may have added labels,
/// annotations, and fields of the Service's specification.
pub(super) fn is_right(found: &Value, wanted: &Value) -> bool {
    let [about, asked] = [found, wanted].map(|object| &object["metadata"]);
    let mut fields = ["addressType", "ports", "endpoints"].into_iter();
    let mut parts = ["labels", "annotations"].into_iter();
    fields.all(|field| found[field] == wanted[field])
        && parts.all(|part| has(&about[part], &asked[part]))
        && has(&found["spec"], &wanted["spec"])
}

/// Whether a value has all that is wanted, and perhaps more fields.
fn has(found: &Value, wanted: &Value) -> bool {
    match (found, wanted) {
        (_, Value::Null) => true,
        (_, Value::Object(wanted)) => wanted.iter().all(|(name, one)| has(&found[name], one)),
        (Value::Array(found), Value::Array(wanted)) => {
            let mut pairs = found.iter().zip(wanted);
            found.len() == wanted.len() && pairs.all(|(found, wanted)| has(found, wanted))
        }
        _ => found == wanted,
    }
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
