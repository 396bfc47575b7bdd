// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The translation of the Gateway API, as tables: objects as YAML, and what becomes of them.

mod local;
mod made;
mod planning;
mod removal;
mod scale;
mod statuses;

use serde_json::Value;

use super::Write;
use crate::testing::{Cluster, endpoint, service, slice};

/// The class, a namespace for each team, and two services with endpoints.
fn base() -> String {
    let class = "apiVersion: gateway.networking.k8s.io/v1\nkind: GatewayClass\nmetadata: {name: l4, generation: 1}\nspec: {controllerName: portolan.dev/l4}\n---\n";
    let namespaces = "apiVersion: v1\nkind: Namespace\nmetadata: {name: shop, labels: {team: shop}}\n---\napiVersion: v1\nkind: Namespace\nmetadata: {name: till, labels: {team: till}}\n---\n";
    let services = [
        service("cart", "10.96.0.1", ""),
        slice("cart-1", "cart", &[endpoint(1, "node-a", "")]),
        service("till", "10.96.0.2", ""),
        slice(
            "till-1",
            "till",
            &[endpoint(2, "node-a", ""), endpoint(3, "node-b", "")],
        ),
    ];
    format!("{class}{namespaces}{}", services.concat())
}

/// A Gateway `shop/<name>` with more fields of its spec, and listeners in flow style.
fn gateway(name: &str, rest: &str, listeners: &str) -> String {
    format!(
        "apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {{name: {name}, namespace: shop, uid: uid-{name}, generation: 3, creationTimestamp: '2026-01-01T00:00:00Z'}}\nspec: {{gatewayClassName: l4{rest}, listeners: [{listeners}]}}\n---\n"
    )
}

const ADDRESS: &str = ", addresses: [{type: IPAddress, value: 198.51.100.1}]";
const TCP: &str = "{name: web, protocol: TCP, port: 80}";

/// A route `<namespace>/<name>`, with its parents and backends in flow style.
fn route(kind: &str, name: &str, parents: &str, backends: &str) -> String {
    let (namespace, name) = name.split_once('/').expect("namespace/name");
    format!(
        "apiVersion: gateway.networking.k8s.io/v1\nkind: {kind}\nmetadata: {{name: {name}, namespace: {namespace}, generation: 5}}\nspec: {{parentRefs: [{parents}], rules: [{{backendRefs: [{backends}]}}]}}\n---\n"
    )
}

/// The Service that is made for the Gateway `edge`, as a load balancer has served it.
const MADE: &str = "apiVersion: v1\nkind: Service\nmetadata: {name: gateway-edge, namespace: shop, labels: {portolan.dev/gateway: gateway-edge}, annotations: {portolan.dev/applied: x}, ownerReferences: [{apiVersion: gateway.networking.k8s.io/v1, kind: Gateway, name: edge, uid: uid-edge}]}\nspec: {type: LoadBalancer, clusterIP: 10.96.0.50, ports: [{name: tcp-80, port: 80, nodePort: 30080}]}\nstatus: {loadBalancer: {ingress: [{ip: 203.0.113.7}]}}\n---\n";

const NODE: &str = "apiVersion: v1\nkind: Node\nmetadata: {name: node-a}\nstatus: {addresses: [{type: InternalIP, address: 192.168.40.2}]}\n---\n";
const CART: &str = "{name: cart, port: 80}";
const EDGE: &str = "{name: edge}";
const EDGE_OF_SHOP: &str = "{name: edge, namespace: shop}";

/// A cluster with the base and more objects.
fn cluster(objects: &[String]) -> Cluster {
    Cluster::new(&format!("{}{}", base(), objects.concat()))
}

/// Returns the status among these writes that is to be written about an object.
fn written(writes: &[(String, Option<Write>)], object: &str) -> Value {
    match writes.iter().find(|(name, _)| name == object) {
        Some((_, Some(Write::Status(status)))) => status.clone(),
        other => panic!("{object}: {other:?}"),
    }
}

/// Returns the status that is to be written about an object.
fn status(cluster: &mut Cluster, object: &str) -> Value {
    written(&cluster.report().0, object)
}

/// Returns conditions, each as `TYPE=STATUS REASON`.
fn conditions(of: &Value) -> Vec<String> {
    let all = of["conditions"].as_array().expect("conditions").iter();
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    all.map(|one| {
        format!(
            "{}={} {}",
            text(&one["type"]),
            text(&one["status"]),
            text(&one["reason"])
        )
    })
    .collect()
}
