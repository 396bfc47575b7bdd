// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Makes k8s-openapi's types of the decoded objects, by moving their texts: so JSON and protobuf
//! share the conversion into the agent's own form. KUBE: a server writes fields in protobuf that
//! JSON leaves out if they are empty, so an empty text counts as none. It stores texts that are no
//! UTF-8, and writes them in JSON with replacement characters: so does [`lossy`].

use std::collections::BTreeMap;

use control::model::original;
use k8s_openapi::{
    api::{core::v1 as core, discovery::v1 as discovery, networking::v1 as networking},
    apimachinery::pkg::apis::meta::v1 as meta,
    jiff::Timestamp,
};

use super::objects::{
    AffinityConfig, ClientIp, Conditions, Endpoint, EndpointPort, EndpointSlice, Hint, Hints,
    Identity, Ingress, LoadBalancer, Named, Node, NodeAddress, NodeSpec, NodeStatus, ObjectMeta,
    OwnerReference, Service, ServiceCidr, ServiceCidrSpec, ServicePort, ServiceSpec, Taint, Time,
};

/// Returns the text; None if it is empty.
fn text(given: Option<String>) -> Option<String> {
    given.filter(|text| !text.is_empty())
}

/// Returns the bytes as text; whatever is no UTF-8 becomes U+FFFD.
fn lossy(given: Vec<u8>) -> String {
    String::from_utf8(given)
        .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

/// Returns a map with its values as texts; None if it is empty.
fn texts(given: BTreeMap<String, Vec<u8>>) -> Option<BTreeMap<String, String>> {
    let texts = given.into_iter().map(|(key, value)| (key, lossy(value)));
    Some(texts.collect()).filter(|all: &BTreeMap<_, _>| !all.is_empty())
}

/// Returns the values; None if there are none.
fn many<T, U>(given: Vec<T>, into: impl Fn(T) -> U) -> Option<Vec<U>> {
    (!given.is_empty()).then(|| given.into_iter().map(into).collect())
}

fn metadata(given: Option<ObjectMeta>) -> meta::ObjectMeta {
    given.unwrap_or_default().into()
}

fn time(given: Option<Time>) -> Option<meta::Time> {
    let seconds = given?.seconds?;
    Timestamp::from_second(seconds).ok().map(meta::Time)
}

/// Defines conversions: of each field how it is made of the given object. With `..default` at the
/// end the other fields have their defaults.
macro_rules! conversions {
    ($($given:ident: $from:ty => $to:ty {
        $($field:ident: $value:expr,)* $(..$default:ident)?
    })*) => {
        $(impl From<$from> for $to {
            fn from($given: $from) -> Self {
                Self { $($field: $value,)* $(..Self::$default())? }
            }
        })*
    };
}

/// Moves texts and ranges as they are.
fn same<T>(given: T) -> T {
    given
}

conversions! {
    given: Identity => meta::ObjectMeta {
        name: text(Some(lossy(given.name))),
        namespace: text(Some(lossy(given.namespace))),
        resource_version: text(Some(lossy(given.resource_version))),
        ..default
    }
    given: ObjectMeta => meta::ObjectMeta {
        name: text(given.name),
        namespace: text(given.namespace),
        uid: text(given.uid),
        resource_version: text(given.resource_version),
        creation_timestamp: time(given.creation_timestamp),
        deletion_timestamp: time(given.deletion_timestamp),
        labels: texts(given.labels),
        annotations: texts(given.annotations),
        owner_references: many(given.owner_references, Into::into),
        ..default
    }
    given: OwnerReference => meta::OwnerReference { kind: lossy(given.kind), ..default }
    given: Named => core::Namespace { metadata: metadata(given.metadata), ..default }
    given: Named => original::GatewayClass { metadata: metadata(given.metadata), ..default }
    given: Named => original::Gateway { metadata: metadata(given.metadata), ..default }
    given: Named => original::TCPRoute { metadata: metadata(given.metadata), ..default }
    given: Named => original::UDPRoute { metadata: metadata(given.metadata), ..default }
    given: Named => original::ReferenceGrant { metadata: metadata(given.metadata), ..default }
    given: EndpointSlice => discovery::EndpointSlice {
        metadata: metadata(given.metadata),
        address_type: given.address_type,
        endpoints: given.endpoints.into_iter().map(Into::into).collect(),
        ports: many(given.ports, Into::into),
    }
    given: Endpoint => discovery::Endpoint {
        addresses: given.addresses,
        conditions: given.conditions.map(Into::into),
        node_name: text(given.node_name),
        zone: text(given.zone.map(lossy)),
        hints: given.hints.map(Into::into),
        ..default
    }
    given: Conditions => discovery::EndpointConditions {
        ready: given.ready,
        serving: given.serving,
        terminating: given.terminating,
    }
    given: Hints => discovery::EndpointHints {
        for_zones: many(given.zones, |Hint { name }| discovery::ForZone { name }),
        for_nodes: many(given.nodes, |Hint { name }| discovery::ForNode { name }),
    }
    given: EndpointPort => discovery::EndpointPort {
        name: text(given.name),
        protocol: text(given.protocol),
        port: given.port,
        ..default
    }
    given: Service => core::Service {
        metadata: metadata(given.metadata),
        spec: given.spec.map(Into::into),
        status: given.status.and_then(|status| status.load_balancer).map(Into::into),
    }
    given: LoadBalancer => core::ServiceStatus {
        load_balancer: Some(core::LoadBalancerStatus { ingress: many(given.ingress, Into::into) }),
        ..default
    }
    given: ServiceSpec => core::ServiceSpec {
        ports: many(given.ports, Into::into),
        cluster_ip: text(given.cluster_ip),
        cluster_ips: many(given.cluster_ips, same),
        type_: text(given.kind),
        external_ips: many(given.external_ips, same),
        session_affinity: text(given.session_affinity),
        load_balancer_source_ranges: many(given.source_ranges, same),
        external_traffic_policy: text(given.external_traffic_policy),
        health_check_node_port: given.health_check_node_port.filter(|port| *port != 0),
        session_affinity_config: given.session_affinity_config.map(Into::into),
        internal_traffic_policy: text(given.internal_traffic_policy),
        ..default
    }
    given: AffinityConfig => core::SessionAffinityConfig {
        client_ip: given.client_ip.map(Into::into),
    }
    given: ClientIp => core::ClientIPConfig { timeout_seconds: given.timeout_seconds, }
    given: ServicePort => core::ServicePort {
        name: text(given.name),
        protocol: text(given.protocol),
        port: given.port,
        node_port: given.node_port.filter(|port| *port != 0),
        ..default
    }
    given: Ingress => core::LoadBalancerIngress {
        ip: text(given.ip),
        hostname: text(given.hostname),
        ip_mode: text(given.ip_mode),
        ..default
    }
    given: Node => core::Node {
        metadata: metadata(given.metadata),
        spec: given.spec.map(Into::into),
        status: given.status.map(Into::into),
    }
    given: NodeSpec => core::NodeSpec {
        pod_cidr: text(given.pod_cidr),
        pod_cidrs: many(given.pod_cidrs, same),
        taints: many(given.taints, Into::into),
        ..default
    }
    given: Taint => core::Taint { key: given.key, effect: given.effect, ..default }
    given: NodeStatus => core::NodeStatus {
        addresses: many(given.addresses, Into::into),
        ..default
    }
    given: NodeAddress => core::NodeAddress { type_: given.kind, address: given.address, }
    given: ServiceCidr => networking::ServiceCIDR {
        metadata: metadata(given.metadata),
        spec: given.spec.map(Into::into),
        ..default
    }
    given: ServiceCidrSpec => networking::ServiceCIDRSpec { cidrs: many(given.cidrs, same), }
}
