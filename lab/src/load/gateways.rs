// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Gateways with many listeners, and a TCPRoute for each listener that leads to a service of
//! `records`, as an API server stores them in etcd.

use std::net::{Ipv4Addr, SocketAddr};

use serde_json::{Value, json};

use super::records::{NAMESPACE, metadata, record, uid};
use crate::node::api_server::Record;

/// The class that the Gateways name.
pub const CLASS: &str = "l4";
/// KUBE: the most listeners that a Gateway may have.
const LISTENERS: u32 = 64;
const FIRST_PORT: u32 = 9000;
pub(super) const VERSION: &str = "gateway.networking.k8s.io/v1";

const GATEWAY: u32 = 4;
const ROUTE: u32 = 5;

/// Returns the address and port of the listener of a route, by its number.
pub fn listener_of(route: u32) -> SocketAddr {
    let port = FIRST_PORT + route % LISTENERS;
    (address_of(route / LISTENERS), port as u16).into()
}

fn address_of(gateway: u32) -> Ipv4Addr {
    Ipv4Addr::new(198, 51, 100, (gateway + 1) as u8)
}

/// Returns the etcd records of so many routes and of their Gateways.
pub(super) fn of(routes: u32) -> Vec<Record> {
    let gateways = (0..routes.div_ceil(LISTENERS)).map(|number| {
        let key = format!("/registry/gateway.networking.k8s.io/gateways/{NAMESPACE}/g{number}");
        record(key, gateway(number))
    });
    let routes = (0..routes).map(|number| {
        let key = format!("/registry/gateway.networking.k8s.io/tcproutes/{NAMESPACE}/r{number}");
        record(key, route(number))
    });
    gateways.chain(routes).collect()
}

fn gateway(number: u32) -> Value {
    let listeners: Vec<_> = (0..LISTENERS)
        .map(|port| json!({"name": format!("l{port}"), "protocol": "TCP", "port": FIRST_PORT + port}))
        .collect();
    json!({
        "apiVersion": VERSION, "kind": "Gateway",
        "metadata": metadata(&format!("g{number}"), uid(GATEWAY, number)),
        "spec": {
            "gatewayClassName": CLASS, "listeners": listeners,
            "addresses": [{"type": "IPAddress", "value": address_of(number)}]
        }
    })
}

fn route(number: u32) -> Value {
    let (gateway, listener) = (number / LISTENERS, number % LISTENERS);
    let parent = json!({"name": format!("g{gateway}"), "sectionName": format!("l{listener}")});
    json!({
        "apiVersion": VERSION, "kind": "TCPRoute",
        "metadata": metadata(&format!("r{number}"), uid(ROUTE, number)),
        "spec": {"parentRefs": [parent], "rules": [rule(number)]}
    })
}

/// Returns the rule that leads to a service.
pub(super) fn rule(service: u32) -> Value {
    json!({"backendRefs": [{"name": format!("s{service}"), "port": 80}]})
}
