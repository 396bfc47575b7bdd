// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The kinds of object that the agent reads.

use std::collections::BTreeMap;

use prost::Message;

messages! {
    ObjectMeta {
        1 [string, optional] name: Option<String>,
        3 [string, optional] namespace: Option<String>,
        5 [string, optional] uid: Option<String>,
        6 [string, optional] resource_version: Option<String>,
        8 [message, optional] creation_timestamp: Option<Time>,
        9 [message, optional] deletion_timestamp: Option<Time>,
        // KUBE: a server checks the keys, but stores values that are no UTF-8.
        11 [btree_map = "string, bytes"] labels: BTreeMap<String, Vec<u8>>,
        12 [btree_map = "string, bytes"] annotations: BTreeMap<String, Vec<u8>>,
        13 [message, repeated] owner_references: Vec<OwnerReference>,
    }
    OwnerReference {
        1 [bytes = "vec"] kind: Vec<u8>,
    }
    /// What identifies an object, whatever its other fields are.
    Identified {
        1 [message, optional] metadata: Option<Identity>,
    }
    Identity {
        1 [bytes = "vec"] name: Vec<u8>,
        3 [bytes = "vec"] namespace: Vec<u8>,
        6 [bytes = "vec"] resource_version: Vec<u8>,
    }
    /// Seconds since 1970; None is no time at all.
    Time {
        1 [int64, optional] seconds: Option<i64>,
    }
    /// An object of which only the metadata is read: a namespace. Custom resources come as JSON.
    Named {
        1 [message, optional] metadata: Option<ObjectMeta>,
    }
    EndpointSlice {
        1 [message, optional] metadata: Option<ObjectMeta>,
        2 [message, repeated] endpoints: Vec<Endpoint>,
        3 [message, repeated] ports: Vec<EndpointPort>,
        4 [string] address_type: String,
    }
    Endpoint {
        1 [string, repeated] addresses: Vec<String>,
        2 [message, optional] conditions: Option<Conditions>,
        6 [string, optional] node_name: Option<String>,
        7 [bytes = "vec", optional] zone: Option<Vec<u8>>,
        8 [message, optional] hints: Option<Hints>,
    }
    Conditions {
        1 [bool, optional] ready: Option<bool>,
        2 [bool, optional] serving: Option<bool>,
        3 [bool, optional] terminating: Option<bool>,
    }
    Hints {
        1 [message, repeated] zones: Vec<Hint>,
        2 [message, repeated] nodes: Vec<Hint>,
    }
    Hint {
        1 [string] name: String,
    }
    EndpointPort {
        1 [string, optional] name: Option<String>,
        2 [string, optional] protocol: Option<String>,
        3 [int32, optional] port: Option<i32>,
    }
    Service {
        1 [message, optional] metadata: Option<ObjectMeta>,
        2 [message, optional] spec: Option<ServiceSpec>,
        3 [message, optional] status: Option<ServiceStatus>,
    }
    ServiceSpec {
        1 [message, repeated] ports: Vec<ServicePort>,
        3 [string, optional] cluster_ip: Option<String>,
        18 [string, repeated] cluster_ips: Vec<String>,
        4 [string, optional] kind: Option<String>,
        5 [string, repeated] external_ips: Vec<String>,
        7 [string, optional] session_affinity: Option<String>,
        9 [string, repeated] source_ranges: Vec<String>,
        11 [string, optional] external_traffic_policy: Option<String>,
        12 [int32, optional] health_check_node_port: Option<i32>,
        14 [message, optional] session_affinity_config: Option<AffinityConfig>,
        22 [string, optional] internal_traffic_policy: Option<String>,
    }
    ServicePort {
        1 [string, optional] name: Option<String>,
        2 [string, optional] protocol: Option<String>,
        3 [int32] port: i32,
        5 [int32, optional] node_port: Option<i32>,
    }
    AffinityConfig {
        1 [message, optional] client_ip: Option<ClientIp>,
    }
    ClientIp {
        1 [int32, optional] timeout_seconds: Option<i32>,
    }
    ServiceStatus {
        1 [message, optional] load_balancer: Option<LoadBalancer>,
    }
    LoadBalancer {
        1 [message, repeated] ingress: Vec<Ingress>,
    }
    Ingress {
        1 [string, optional] ip: Option<String>,
        2 [string, optional] hostname: Option<String>,
        3 [string, optional] ip_mode: Option<String>,
    }
    Node {
        1 [message, optional] metadata: Option<ObjectMeta>,
        2 [message, optional] spec: Option<NodeSpec>,
        3 [message, optional] status: Option<NodeStatus>,
    }
    NodeSpec {
        1 [string, optional] pod_cidr: Option<String>,
        5 [message, repeated] taints: Vec<Taint>,
        7 [string, repeated] pod_cidrs: Vec<String>,
    }
    Taint {
        1 [string] key: String,
        3 [string] effect: String,
    }
    NodeStatus {
        5 [message, repeated] addresses: Vec<NodeAddress>,
    }
    NodeAddress {
        1 [string] kind: String,
        2 [string] address: String,
    }
    ServiceCidr {
        1 [message, optional] metadata: Option<ObjectMeta>,
        2 [message, optional] spec: Option<ServiceCidrSpec>,
    }
    ServiceCidrSpec {
        1 [string, repeated] cidrs: Vec<String>,
    }
}
