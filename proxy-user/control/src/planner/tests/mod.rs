// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Compares the planner with kube-proxy's semantics, as tables: one file per subject. Their shared
//! constants and helpers are here.

mod claims;
mod damage;
mod endpoints;
mod frontends;
pub(crate) mod scale;

use proxy_common::{FrontendKind, ServiceFlags, V4};

use crate::{
    plan::{FamilyPlan, PortPlan},
    testing::{Cluster, service},
};

const READY: &str = "";
const UNREADY: &str = ", conditions: {ready: false, serving: false, terminating: false}";
const DRAINING: &str = ", conditions: {ready: false, serving: true, terminating: true}";
const GONE: &str = ", conditions: {ready: false, serving: false, terminating: true}";
const ZONE_NODE: &str = "apiVersion: v1\nkind: Node\nmetadata: {name: node-a, labels: {topology.kubernetes.io/zone: zone-a}}\nstatus: {addresses: [{type: InternalIP, address: 192.168.40.2}]}\n---\n";
const LOCAL_BALANCER: &str = ", type: LoadBalancer, externalTrafficPolicy: Local, healthCheckNodePort: 31000}\nstatus: {loadBalancer: {ingress: [{ip: 198.51.100.1}]}";

fn port(cluster: &Cluster, text: &str) -> PortPlan {
    let (plan, warnings) = cluster.plan(text);
    assert_eq!(warnings, []);
    plan.ports.into_iter().next().expect("a port")
}

/// Returns the port of a service `shop/cart` with more fields of its spec.
fn cart(rest: &str) -> PortPlan {
    let cluster = Cluster::new(&service("cart", "172.30.0.1", rest));
    port(&cluster, "shop/cart")
}

fn flags(family: &FamilyPlan<V4>, kind: FrontendKind) -> ServiceFlags {
    let found = family.frontends.iter().find(|f| f.flags.kind() == kind);
    found.expect("a frontend of the kind").flags
}
