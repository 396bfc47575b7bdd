// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The kinds of object that the agent reads.

use std::collections::BTreeMap;

use prost::Message;

#[derive(Clone, PartialEq, Message)]
pub(in super::super) struct ObjectMeta {
    #[prost(string, optional, tag = "1")]
    pub(super) name: Option<String>,
    #[prost(string, optional, tag = "3")]
    pub(super) namespace: Option<String>,
    #[prost(string, optional, tag = "5")]
    pub(super) uid: Option<String>,
    #[prost(string, optional, tag = "6")]
    pub(super) resource_version: Option<String>,
    #[prost(message, optional, tag = "8")]
    pub(super) creation_timestamp: Option<Time>,
    #[prost(message, optional, tag = "9")]
    pub(super) deletion_timestamp: Option<Time>,
    // KUBE: a server checks the keys, but stores values that are no UTF-8.
    #[prost(btree_map = "string, bytes", tag = "11")]
    pub(super) labels: BTreeMap<String, Vec<u8>>,
    #[prost(btree_map = "string, bytes", tag = "12")]
    pub(super) annotations: BTreeMap<String, Vec<u8>>,
    #[prost(message, repeated, tag = "13")]
    pub(super) owner_references: Vec<OwnerReference>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct OwnerReference {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) kind: Vec<u8>,
}

/// What identifies an object, whatever its other fields are.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Identified {
    #[prost(message, optional, tag = "1")]
    pub(super) metadata: Option<Identity>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Identity {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) name: Vec<u8>,
    #[prost(bytes = "vec", tag = "3")]
    pub(super) namespace: Vec<u8>,
    #[prost(bytes = "vec", tag = "6")]
    pub(super) resource_version: Vec<u8>,
}

/// Seconds since 1970; None is no time at all.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Time {
    #[prost(int64, optional, tag = "1")]
    pub(super) seconds: Option<i64>,
}

/// An object of which only the metadata is read: a namespace. Custom resources come as JSON.
#[derive(Clone, PartialEq, Message)]
pub(in super::super) struct Named {
    #[prost(message, optional, tag = "1")]
    pub(in super::super) metadata: Option<ObjectMeta>,
}

#[derive(Clone, PartialEq, Message)]
pub(in super::super) struct EndpointSlice {
    #[prost(message, optional, tag = "1")]
    pub(super) metadata: Option<ObjectMeta>,
    #[prost(message, repeated, tag = "2")]
    pub(super) endpoints: Vec<Endpoint>,
    #[prost(message, repeated, tag = "3")]
    pub(super) ports: Vec<EndpointPort>,
    #[prost(string, tag = "4")]
    pub(super) address_type: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Endpoint {
    #[prost(string, repeated, tag = "1")]
    pub(super) addresses: Vec<String>,
    #[prost(message, optional, tag = "2")]
    pub(super) conditions: Option<Conditions>,
    #[prost(string, optional, tag = "6")]
    pub(super) node_name: Option<String>,
    #[prost(bytes = "vec", optional, tag = "7")]
    pub(super) zone: Option<Vec<u8>>,
    #[prost(message, optional, tag = "8")]
    pub(super) hints: Option<Hints>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Conditions {
    #[prost(bool, optional, tag = "1")]
    pub(super) ready: Option<bool>,
    #[prost(bool, optional, tag = "2")]
    pub(super) serving: Option<bool>,
    #[prost(bool, optional, tag = "3")]
    pub(super) terminating: Option<bool>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Hints {
    #[prost(message, repeated, tag = "1")]
    pub(super) zones: Vec<Hint>,
    #[prost(message, repeated, tag = "2")]
    pub(super) nodes: Vec<Hint>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Hint {
    #[prost(string, tag = "1")]
    pub(super) name: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct EndpointPort {
    #[prost(string, optional, tag = "1")]
    pub(super) name: Option<String>,
    #[prost(string, optional, tag = "2")]
    pub(super) protocol: Option<String>,
    #[prost(int32, optional, tag = "3")]
    pub(super) port: Option<i32>,
}

#[derive(Clone, PartialEq, Message)]
pub(in super::super) struct Service {
    #[prost(message, optional, tag = "1")]
    pub(super) metadata: Option<ObjectMeta>,
    #[prost(message, optional, tag = "2")]
    pub(super) spec: Option<ServiceSpec>,
    #[prost(message, optional, tag = "3")]
    pub(super) status: Option<ServiceStatus>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ServiceSpec {
    #[prost(message, repeated, tag = "1")]
    pub(super) ports: Vec<ServicePort>,
    #[prost(string, optional, tag = "3")]
    pub(super) cluster_ip: Option<String>,
    #[prost(string, repeated, tag = "18")]
    pub(super) cluster_ips: Vec<String>,
    #[prost(string, optional, tag = "4")]
    pub(super) kind: Option<String>,
    #[prost(string, repeated, tag = "5")]
    pub(super) external_ips: Vec<String>,
    #[prost(string, optional, tag = "7")]
    pub(super) session_affinity: Option<String>,
    #[prost(string, repeated, tag = "9")]
    pub(super) source_ranges: Vec<String>,
    #[prost(string, optional, tag = "11")]
    pub(super) external_traffic_policy: Option<String>,
    #[prost(int32, optional, tag = "12")]
    pub(super) health_check_node_port: Option<i32>,
    #[prost(message, optional, tag = "14")]
    pub(super) session_affinity_config: Option<AffinityConfig>,
    #[prost(string, optional, tag = "22")]
    pub(super) internal_traffic_policy: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ServicePort {
    #[prost(string, optional, tag = "1")]
    pub(super) name: Option<String>,
    #[prost(string, optional, tag = "2")]
    pub(super) protocol: Option<String>,
    #[prost(int32, tag = "3")]
    pub(super) port: i32,
    #[prost(int32, optional, tag = "5")]
    pub(super) node_port: Option<i32>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct AffinityConfig {
    #[prost(message, optional, tag = "1")]
    pub(super) client_ip: Option<ClientIp>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ClientIp {
    #[prost(int32, optional, tag = "1")]
    pub(super) timeout_seconds: Option<i32>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ServiceStatus {
    #[prost(message, optional, tag = "1")]
    pub(super) load_balancer: Option<LoadBalancer>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct LoadBalancer {
    #[prost(message, repeated, tag = "1")]
    pub(super) ingress: Vec<Ingress>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Ingress {
    #[prost(string, optional, tag = "1")]
    pub(super) ip: Option<String>,
    #[prost(string, optional, tag = "2")]
    pub(super) hostname: Option<String>,
    #[prost(string, optional, tag = "3")]
    pub(super) ip_mode: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(in super::super) struct Node {
    #[prost(message, optional, tag = "1")]
    pub(super) metadata: Option<ObjectMeta>,
    #[prost(message, optional, tag = "2")]
    pub(super) spec: Option<NodeSpec>,
    #[prost(message, optional, tag = "3")]
    pub(super) status: Option<NodeStatus>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct NodeSpec {
    #[prost(string, optional, tag = "1")]
    pub(super) pod_cidr: Option<String>,
    #[prost(message, repeated, tag = "5")]
    pub(super) taints: Vec<Taint>,
    #[prost(string, repeated, tag = "7")]
    pub(super) pod_cidrs: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Taint {
    #[prost(string, tag = "1")]
    pub(super) key: String,
    #[prost(string, tag = "3")]
    pub(super) effect: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct NodeStatus {
    #[prost(message, repeated, tag = "5")]
    pub(super) addresses: Vec<NodeAddress>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct NodeAddress {
    #[prost(string, tag = "1")]
    pub(super) kind: String,
    #[prost(string, tag = "2")]
    pub(super) address: String,
}

#[derive(Clone, PartialEq, Message)]
pub(in super::super) struct ServiceCidr {
    #[prost(message, optional, tag = "1")]
    pub(super) metadata: Option<ObjectMeta>,
    #[prost(message, optional, tag = "2")]
    pub(super) spec: Option<ServiceCidrSpec>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ServiceCidrSpec {
    #[prost(string, repeated, tag = "1")]
    pub(super) cidrs: Vec<String>,
}
