// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The kinds of object that the agent reads, and how each becomes k8s-openapi's type, by moving its
//! texts: so JSON and protobuf share the conversion into the agent's own form. KUBE: a server
//! writes fields in protobuf that JSON leaves out if they are empty, so empty texts are none. It
//! stores texts that are no UTF-8, and writes them in JSON with replacement characters: so does
//! [`lossy`].

use std::collections::BTreeMap;

use control::model::original;
use k8s_openapi::{
    api::{core::v1 as core, discovery::v1 as discovery, networking::v1 as networking},
    apimachinery::pkg::apis::meta::v1 as meta,
    jiff::Timestamp,
};
use prost::Message;

/// Returns the text; None if it is empty.
fn text(given: Option<String>) -> Option<String> {
    given.filter(|text| !text.is_empty())
}

/// Returns the bytes as text; whatever is no UTF-8 becomes U+FFFD.
fn lossy(given: Vec<u8>) -> String {
    String::from_utf8(given)
        .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

fn lossy_text(given: Option<Vec<u8>>) -> Option<String> {
    text(given.map(lossy))
}

/// Returns a map with its values as texts; None if it is empty.
fn texts(given: BTreeMap<String, Vec<u8>>) -> Option<BTreeMap<String, String>> {
    let texts = given.into_iter().map(|(key, value)| (key, lossy(value)));
    Some(texts.collect()).filter(|all: &BTreeMap<_, _>| !all.is_empty())
}

fn each<T: Into<U>, U>(given: Vec<T>) -> Vec<U> {
    given.into_iter().map(Into::into).collect()
}

/// Returns the values; None if there are none.
fn many<T: Into<U>, U>(given: Vec<T>) -> Option<Vec<U>> {
    (!given.is_empty()).then(|| each(given))
}

fn one<T: Into<U>, U>(given: Option<T>) -> Option<U> {
    given.map(Into::into)
}

fn metadata(given: Option<ObjectMeta>) -> meta::ObjectMeta {
    given.unwrap_or_default().into()
}

fn time(given: Option<Time>) -> Option<meta::Time> {
    let seconds = given?.seconds?;
    Timestamp::from_second(seconds).ok().map(meta::Time)
}

fn nonzero(given: Option<i32>) -> Option<i32> {
    given.filter(|number| *number != 0)
}

fn same<T>(given: T) -> T {
    given
}

/// Defines messages as `messages`, each with the type that it becomes, and of each field the
/// function that converts it. With `..default` at the end that type has more fields.
macro_rules! converted {
    ($($name:ident => $to:ty {
        $($number:literal [$($form:tt)*] $field:ident: $type:ty = $by:ident,)*
        $(..$default:ident)?
    })*) => {
        messages! { $($name { $($number [$($form)*] $field: $type,)* })* }
        $(impl From<$name> for $to {
            fn from(given: $name) -> Self {
                Self { $($field: $by(given.$field),)* $(..Self::$default())? }
            }
        })*
    };
}

messages! {
    /// What identifies an object, whatever its other fields are.
    Identified {
        1 [message, optional] metadata: Option<Identity>,
    }
    /// Seconds since 1970; None is no time at all.
    Time {
        1 [int64, optional] seconds: Option<i64>,
    }
    /// An object of which only the metadata is read: a namespace. Custom resources come as JSON.
    Named {
        1 [message, optional] metadata: Option<ObjectMeta>,
    }
}

macro_rules! named {
    ($($to:ty,)*) => {
        $(impl From<Named> for $to {
            fn from(given: Named) -> Self {
                Self { metadata: metadata(given.metadata), ..Self::default() }
            }
        })*
    };
}
named! {
    core::Namespace,
    original::GatewayClass,
    original::Gateway,
    original::TCPRoute,
    original::UDPRoute,
    original::ReferenceGrant,
}

converted! {
    ObjectMeta => meta::ObjectMeta {
        1 [string, optional] name: Option<String> = text,
        3 [string, optional] namespace: Option<String> = text,
        5 [string, optional] uid: Option<String> = text,
        6 [string, optional] resource_version: Option<String> = text,
        8 [message, optional] creation_timestamp: Option<Time> = time,
        9 [message, optional] deletion_timestamp: Option<Time> = time,
        // KUBE: a server checks the keys, but stores values that are no UTF-8.
        11 [btree_map = "string, bytes"] labels: BTreeMap<String, Vec<u8>> = texts,
        12 [btree_map = "string, bytes"] annotations: BTreeMap<String, Vec<u8>> = texts,
        13 [message, repeated] owner_references: Vec<OwnerReference> = many,
        ..default
    }
    OwnerReference => meta::OwnerReference {
        1 [bytes = "vec"] kind: Vec<u8> = lossy,
        3 [bytes = "vec"] name: Vec<u8> = lossy,
        ..default
    }
    Identity => meta::ObjectMeta {
        1 [bytes = "vec", optional] name: Option<Vec<u8>> = lossy_text,
        3 [bytes = "vec", optional] namespace: Option<Vec<u8>> = lossy_text,
        6 [bytes = "vec", optional] resource_version: Option<Vec<u8>> = lossy_text,
        ..default
    }
    EndpointSlice => discovery::EndpointSlice {
        1 [message, optional] metadata: Option<ObjectMeta> = metadata,
        2 [message, repeated] endpoints: Vec<Endpoint> = each,
        3 [message, repeated] ports: Vec<EndpointPort> = many,
        4 [string] address_type: String = same,
    }
    Endpoint => discovery::Endpoint {
        1 [string, repeated] addresses: Vec<String> = same,
        2 [message, optional] conditions: Option<Conditions> = one,
        6 [string, optional] node_name: Option<String> = text,
        7 [bytes = "vec", optional] zone: Option<Vec<u8>> = lossy_text,
        8 [message, optional] hints: Option<Hints> = one,
        ..default
    }
    Conditions => discovery::EndpointConditions {
        1 [bool, optional] ready: Option<bool> = same,
        2 [bool, optional] serving: Option<bool> = same,
        3 [bool, optional] terminating: Option<bool> = same,
    }
    Hints => discovery::EndpointHints {
        1 [message, repeated] for_zones: Vec<ZoneHint> = many,
        2 [message, repeated] for_nodes: Vec<NodeHint> = many,
    }
    ZoneHint => discovery::ForZone {
        1 [string] name: String = same,
    }
    NodeHint => discovery::ForNode {
        1 [string] name: String = same,
    }
    EndpointPort => discovery::EndpointPort {
        1 [string, optional] name: Option<String> = text,
        2 [string, optional] protocol: Option<String> = text,
        3 [int32, optional] port: Option<i32> = same,
        ..default
    }
    Service => core::Service {
        1 [message, optional] metadata: Option<ObjectMeta> = metadata,
        2 [message, optional] spec: Option<ServiceSpec> = one,
        3 [message, optional] status: Option<ServiceStatus> = one,
    }
    ServiceSpec => core::ServiceSpec {
        1 [message, repeated] ports: Vec<ServicePort> = many,
        3 [string, optional] cluster_ip: Option<String> = text,
        18 [string, repeated] cluster_ips: Vec<String> = many,
        4 [string, optional] type_: Option<String> = text,
        5 [string, repeated] external_ips: Vec<String> = many,
        7 [string, optional] session_affinity: Option<String> = text,
        9 [string, repeated] load_balancer_source_ranges: Vec<String> = many,
        11 [string, optional] external_traffic_policy: Option<String> = text,
        12 [int32, optional] health_check_node_port: Option<i32> = nonzero,
        14 [message, optional] session_affinity_config: Option<AffinityConfig> = one,
        22 [string, optional] internal_traffic_policy: Option<String> = text,
        ..default
    }
    ServicePort => core::ServicePort {
        1 [string, optional] name: Option<String> = text,
        2 [string, optional] protocol: Option<String> = text,
        3 [int32] port: i32 = same,
        5 [int32, optional] node_port: Option<i32> = nonzero,
        ..default
    }
    AffinityConfig => core::SessionAffinityConfig {
        1 [message, optional] client_ip: Option<ClientIp> = one,
    }
    ClientIp => core::ClientIPConfig {
        1 [int32, optional] timeout_seconds: Option<i32> = same,
    }
    ServiceStatus => core::ServiceStatus {
        1 [message, optional] load_balancer: Option<LoadBalancer> = one,
        ..default
    }
    LoadBalancer => core::LoadBalancerStatus {
        1 [message, repeated] ingress: Vec<Ingress> = many,
    }
    Ingress => core::LoadBalancerIngress {
        1 [string, optional] ip: Option<String> = text,
        2 [string, optional] hostname: Option<String> = text,
        3 [string, optional] ip_mode: Option<String> = text,
        ..default
    }
    Node => core::Node {
        1 [message, optional] metadata: Option<ObjectMeta> = metadata,
        2 [message, optional] spec: Option<NodeSpec> = one,
        3 [message, optional] status: Option<NodeStatus> = one,
    }
    NodeSpec => core::NodeSpec {
        1 [string, optional] pod_cidr: Option<String> = text,
        5 [message, repeated] taints: Vec<Taint> = many,
        7 [string, repeated] pod_cidrs: Vec<String> = many,
        ..default
    }
    Taint => core::Taint {
        1 [string] key: String = same,
        ..default
    }
    NodeStatus => core::NodeStatus {
        5 [message, repeated] addresses: Vec<NodeAddress> = many,
        ..default
    }
    NodeAddress => core::NodeAddress {
        1 [string] type_: String = same,
        2 [string] address: String = same,
    }
    ServiceCidr => networking::ServiceCIDR {
        1 [message, optional] metadata: Option<ObjectMeta> = metadata,
        2 [message, optional] spec: Option<ServiceCidrSpec> = one,
        ..default
    }
    ServiceCidrSpec => networking::ServiceCIDRSpec {
        1 [string, repeated] cidrs: Vec<String> = many,
    }
}
