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
    Endpoint, EndpointPort, EndpointSlice, Hint, Hints, Identity, Ingress, Named, Node, NodeSpec,
    NodeStatus, ObjectMeta, Service, ServiceCidr, ServicePort, ServiceSpec, Time,
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

fn time(given: Option<Time>) -> Option<meta::Time> {
    let seconds = given?.seconds?;
    Timestamp::from_second(seconds).ok().map(meta::Time)
}

impl From<Identity> for meta::ObjectMeta {
    fn from(given: Identity) -> Self {
        let text = |given| text(Some(lossy(given)));
        Self {
            name: text(given.name),
            namespace: text(given.namespace),
            resource_version: text(given.resource_version),
            ..Self::default()
        }
    }
}

impl From<ObjectMeta> for meta::ObjectMeta {
    fn from(given: ObjectMeta) -> Self {
        Self {
            name: text(given.name),
            namespace: text(given.namespace),
            uid: text(given.uid),
            resource_version: text(given.resource_version),
            creation_timestamp: time(given.creation_timestamp),
            deletion_timestamp: time(given.deletion_timestamp),
            labels: texts(given.labels),
            annotations: texts(given.annotations),
            owner_references: many(given.owner_references, |owner| meta::OwnerReference {
                kind: lossy(owner.kind),
                ..meta::OwnerReference::default()
            }),
            ..Self::default()
        }
    }
}

macro_rules! named {
    ($($kind:ty),*) => {
        $(impl From<Named> for $kind {
            fn from(given: Named) -> Self {
                Self {
                    metadata: given.metadata.unwrap_or_default().into(),
                    ..Self::default()
                }
            }
        })*
    };
}
named!(
    core::Namespace,
    original::GatewayClass,
    original::Gateway,
    original::TCPRoute,
    original::UDPRoute,
    original::ReferenceGrant
);

impl From<EndpointSlice> for discovery::EndpointSlice {
    fn from(given: EndpointSlice) -> Self {
        Self {
            metadata: given.metadata.unwrap_or_default().into(),
            address_type: given.address_type,
            endpoints: given.endpoints.into_iter().map(Into::into).collect(),
            ports: many(given.ports, Into::into),
        }
    }
}

impl From<Endpoint> for discovery::Endpoint {
    fn from(given: Endpoint) -> Self {
        Self {
            addresses: given.addresses,
            conditions: given
                .conditions
                .map(|stated| discovery::EndpointConditions {
                    ready: stated.ready,
                    serving: stated.serving,
                    terminating: stated.terminating,
                }),
            node_name: text(given.node_name),
            zone: text(given.zone.map(lossy)),
            hints: given.hints.map(Into::into),
            ..Self::default()
        }
    }
}

impl From<Hints> for discovery::EndpointHints {
    fn from(given: Hints) -> Self {
        let zone = |Hint { name }| discovery::ForZone { name };
        let node = |Hint { name }| discovery::ForNode { name };
        Self {
            for_zones: many(given.zones, zone),
            for_nodes: many(given.nodes, node),
        }
    }
}

impl From<EndpointPort> for discovery::EndpointPort {
    fn from(given: EndpointPort) -> Self {
        Self {
            name: text(given.name),
            protocol: text(given.protocol),
            port: given.port,
            ..Self::default()
        }
    }
}

impl From<Service> for core::Service {
    fn from(given: Service) -> Self {
        let balancer = given.status.and_then(|status| status.load_balancer);
        let ingress = balancer.map(|balancer| core::LoadBalancerStatus {
            ingress: many(balancer.ingress, Into::into),
        });
        Self {
            metadata: given.metadata.unwrap_or_default().into(),
            spec: given.spec.map(Into::into),
            status: ingress.map(|load_balancer| core::ServiceStatus {
                load_balancer: Some(load_balancer),
                ..core::ServiceStatus::default()
            }),
        }
    }
}

impl From<ServiceSpec> for core::ServiceSpec {
    fn from(given: ServiceSpec) -> Self {
        let affinity = given.session_affinity_config.map(|config| {
            let client_ip = config.client_ip.map(|client_ip| core::ClientIPConfig {
                timeout_seconds: client_ip.timeout_seconds,
            });
            core::SessionAffinityConfig { client_ip }
        });
        let same = |text| text;
        Self {
            ports: many(given.ports, Into::into),
            cluster_ip: text(given.cluster_ip),
            cluster_ips: many(given.cluster_ips, same),
            type_: text(given.kind),
            external_ips: many(given.external_ips, same),
            session_affinity: text(given.session_affinity),
            load_balancer_source_ranges: many(given.source_ranges, same),
            external_traffic_policy: text(given.external_traffic_policy),
            health_check_node_port: given.health_check_node_port.filter(|port| *port != 0),
            session_affinity_config: affinity,
            internal_traffic_policy: text(given.internal_traffic_policy),
            ..Self::default()
        }
    }
}

impl From<ServicePort> for core::ServicePort {
    fn from(given: ServicePort) -> Self {
        Self {
            name: text(given.name),
            protocol: text(given.protocol),
            port: given.port,
            node_port: given.node_port.filter(|port| *port != 0),
            ..Self::default()
        }
    }
}

impl From<Ingress> for core::LoadBalancerIngress {
    fn from(given: Ingress) -> Self {
        Self {
            ip: text(given.ip),
            hostname: text(given.hostname),
            ip_mode: text(given.ip_mode),
            ..Self::default()
        }
    }
}

impl From<Node> for core::Node {
    fn from(given: Node) -> Self {
        Self {
            metadata: given.metadata.unwrap_or_default().into(),
            spec: given.spec.map(Into::into),
            status: given.status.map(Into::into),
        }
    }
}

impl From<NodeSpec> for core::NodeSpec {
    fn from(given: NodeSpec) -> Self {
        let taint = |taint: super::objects::Taint| core::Taint {
            key: taint.key,
            effect: taint.effect,
            ..core::Taint::default()
        };
        Self {
            pod_cidr: text(given.pod_cidr),
            pod_cidrs: many(given.pod_cidrs, |range| range),
            taints: many(given.taints, taint),
            ..Self::default()
        }
    }
}

impl From<NodeStatus> for core::NodeStatus {
    fn from(given: NodeStatus) -> Self {
        let address = |given: super::objects::NodeAddress| core::NodeAddress {
            type_: given.kind,
            address: given.address,
        };
        Self {
            addresses: many(given.addresses, address),
            ..Self::default()
        }
    }
}

impl From<ServiceCidr> for networking::ServiceCIDR {
    fn from(given: ServiceCidr) -> Self {
        Self {
            metadata: given.metadata.unwrap_or_default().into(),
            spec: given.spec.map(|spec| networking::ServiceCIDRSpec {
                cidrs: many(spec.cidrs, |range| range),
            }),
            ..Self::default()
        }
    }
}
