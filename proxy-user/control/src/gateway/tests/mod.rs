// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The translation of the Gateway API, as tables: objects as YAML, and what becomes of them.

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
    let class = class("l4", "controllerName: portolan.dev/l4");
    let namespaces = "apiVersion: v1\nkind: Namespace\nmetadata: {name: shop, labels: {team: shop}}\n---\napiVersion: v1\nkind: Namespace\nmetadata: {name: till, labels: {team: till}}\n---\n";
    let of_till = [(2, "node-a"), (3, "node-b")].map(|(octet, node)| endpoint(octet, node, ""));
    let services = [
        service("cart", "10.96.0.1", ""),
        slice("cart-1", "cart", &[endpoint(1, "node-a", "")]),
        service("till", "10.96.0.2", ""),
        slice("till-1", "till", &of_till),
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

/// A route `shop/cart` of the Gateway `edge`.
fn to(backends: &str) -> String {
    route("TCPRoute", "shop/cart", EDGE, backends)
}

/// The Gateway `edge` with a listener for TCP and more fields of its spec.
fn edge(rest: &str) -> String {
    gateway("edge", rest, TCP)
}

/// A class with this name and more fields of its spec.
fn class(name: &str, spec: &str) -> String {
    format!(
        "apiVersion: gateway.networking.k8s.io/v1\nkind: GatewayClass\nmetadata: {{name: {name}, generation: 1}}\nspec: {{{spec}}}\n---\n"
    )
}

/// The conditions of a Gateway that is served.
const FINE: &str = "Accepted=True Accepted, Programmed=True Programmed";

/// Lets routes of the namespace `till` refer to the Service `cart`.
const GRANT: &str = "apiVersion: gateway.networking.k8s.io/v1\nkind: ReferenceGrant\nmetadata: {name: g, namespace: shop}\nspec: {from: [{group: gateway.networking.k8s.io, kind: TCPRoute, namespace: till}], to: [{group: '', kind: Service, name: cart}]}\n---\n";
/// A listener for routes of every namespace, and such a route.
const FROM_ALL: &str =
    "{name: web, protocol: TCP, port: 80, allowedRoutes: {namespaces: {from: All}}}";
fn of_till() -> String {
    let backend = "{name: cart, namespace: shop, port: 80}";
    let parent = "{name: edge, namespace: shop}";
    route("TCPRoute", "till/cart", parent, backend)
}

/// The Service that is made for the Gateway `edge`, as a load balancer has served it.
const MADE: &str = "apiVersion: v1\nkind: Service\nmetadata: {name: gateway-edge, namespace: shop, labels: {portolan.dev/gateway: gateway-edge}, ownerReferences: [{apiVersion: gateway.networking.k8s.io/v1, kind: Gateway, name: edge, uid: uid-edge}]}\nspec: {type: LoadBalancer, clusterIP: 10.96.0.50, ports: [{name: tcp-80, port: 80, nodePort: 30080}]}\nstatus: {loadBalancer: {ingress: [{ip: 203.0.113.7}]}}\n---\n";
const SERVICE: &str = "Service shop/gateway-edge";

/// An EndpointSlice `shop/<name>` that was made for the Gateway `edge`.
fn made_slice(name: &str, endpoints: &[String]) -> String {
    let owned = "ownerReferences: [{apiVersion: gateway.networking.k8s.io/v1, kind: Gateway, name: edge, uid: u}], labels: {portolan.dev/gateway: gateway-edge, ";
    slice(name, "gateway-edge", endpoints).replace("labels: {", owned)
}

const NODE: &str = "apiVersion: v1\nkind: Node\nmetadata: {name: node-a}\nstatus: {addresses: [{type: InternalIP, address: 192.168.40.2}]}\n---\n";
const CART: &str = "{name: cart, port: 80}";
const EDGE: &str = "{name: edge}";

/// A cluster with the base and more objects.
fn cluster(objects: &[String]) -> Cluster {
    Cluster::new(&format!("{}{}", base(), objects.concat()))
}

/// Returns the status among these writes that is to be written about an object, or the object
/// itself if that is to be applied.
fn written(writes: &[(String, Option<Write>)], object: &str) -> Value {
    match writes.iter().find(|(name, _)| name == object) {
        Some((_, Some(Write::Status(value) | Write::Apply(value)))) => value.clone(),
        other => panic!("{object}: {other:?}"),
    }
}

/// Returns what is to be written about an object, if there is news of it.
fn about(cluster: &mut Cluster, object: &str) -> Option<Option<Write>> {
    let (writes, _) = cluster.report();
    let mut writes = writes.into_iter();
    writes.find_map(|(name, write)| (name == object).then_some(write))
}

/// Returns the status that is to be written about an object.
fn status(cluster: &mut Cluster, object: &str) -> Value {
    written(&cluster.report().0, object)
}

/// Returns conditions, each as `TYPE=STATUS REASON`, with a comma between them.
fn conditions(of: &Value) -> String {
    let all = of["conditions"].as_array().expect("conditions").iter();
    let all = all.map(|one| {
        let [kind, status, reason] =
            ["type", "status", "reason"].map(|field| one[field].as_str().expect("a text"));
        format!("{kind}={status} {reason}")
    });
    all.collect::<Vec<_>>().join(", ")
}
