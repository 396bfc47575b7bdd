// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Why a service has no endpoint, in Kubernetes' words, on a node whose maps were made from the
//! same objects.

use std::fs;

use lab::node::api_server::AGENTS_ACCOUNT;

use super::{CLIENT, explain};
use crate::{objects::Service, server::prepare, world::World};

/// A Service and its slice: what the slice has in place of the right fields, and what must be
/// said.
const CASES: [(&str, &str, &str, &str); 8] = [
    ("portless", "ports: [", "ports: null #", "has no ports"),
    (
        "unnamed",
        "name: http, port: 8080",
        "port: 8080",
        "has no port named http (it has: one without a name)",
    ),
    (
        "renamed",
        "name: http",
        "name: web",
        "has no port named http (it has: web)",
    ),
    (
        "udp",
        "protocol: TCP",
        "protocol: UDP",
        "has the port named http for UDP only, and TCP is asked for",
    ),
    (
        "elsewhere",
        "namespace: shop, labels",
        "namespace: other, labels",
        "no EndpointSlice belongs to it; other/elsewhere-1 is in another namespace",
    ),
    (
        "loopback",
        "10.40.1.20",
        "127.0.0.1",
        "a loopback address, which other hosts cannot reach: refused",
    ),
    (
        "unready",
        "ready: true",
        "ready: false, serving: false",
        "not ready: the readiness probe of container one fails",
    ),
    (
        "unmatched",
        "endpoints: [",
        "endpoints: [] #",
        "its selector app=unmatched matches no pod of namespace shop",
    ),
];

fn manifest(name: &str, address: &str, from: &str, to: &str) -> String {
    let slice = format!(
        "kind: EndpointSlice
apiVersion: discovery.k8s.io/v1
metadata: {{name: {name}-1, namespace: shop, labels: {{kubernetes.io/service-name: {name}}}}}
addressType: IPv4
ports: [{{name: http, port: 8080, protocol: TCP}}]
endpoints: [{{addresses: [10.40.1.20], conditions: {{ready: true}}, targetRef: {{kind: Pod, name: pod-a}}}}]
"
    );
    assert!(slice.contains(from), "{name}: {from}");
    let slice = slice.replacen(from, to, 1);
    format!(
        "kind: Service
apiVersion: v1
metadata: {{name: {name}, namespace: shop}}
spec: {{clusterIP: {address}, clusterIPs: [{address}], selector: {{app: {name}}}, ports: [{{name: http, port: 80, targetPort: 8080}}]}}
---
{slice}"
    )
}

/// A pod whose container is not ready; it is asked for by `explain` only.
const POD: &str = "kind: Pod
apiVersion: v1
metadata: {name: pod-a, namespace: shop, labels: {app: unready}}
spec: {containers: [{name: one, image: none, readinessProbe: {}}]}
status: {phase: Running, containerStatuses: [{name: one, image: none, imageID: '', restartCount: 0, ready: false, state: {running: {}}}]}
";

#[test]
fn the_reason_for_a_service_without_endpoint_is_named() {
    let world = World::build();
    let address = |number: usize| format!("172.30.2.{}", number + 1);
    for (number, (name, from, to, _)) in CASES.iter().enumerate() {
        let text = manifest(name, &address(number), from, to);
        world.write(&format!("{name}.yaml"), text);
    }
    assert!(world.start_by_stack(7).stop().success());
    world.write("pods.yaml", POD);
    let folder = world.manifests();
    for (number, (name, .., words)) in CASES.iter().enumerate() {
        let to = format!("{}:80", address(number));
        let unknown = explain(&world, CLIENT, &to, &[]);
        unknown.finds("in-the-way", "the maps do not say why");
        let said = explain(&world, CLIENT, &to, &["--manifests", &folder]);
        said.finds("in-the-way", words);
        assert_eq!(said.status, 3, "{name}");
        assert!(world.connect(&to).is_err(), "{name}");
    }
}

#[test]
fn endpoints_that_nobody_has_applied_and_those_listed_twice_are_named() {
    let world = World::build();
    let cart = Service::new("cart", "172.30.1.1");
    world.write("cart.yaml", &cart);
    assert!(world.start_by_stack(7).stop().success());
    let twice = cart.clone().also_at(8080).to_string();
    let elsewhere = cart.also_at(8081).to_string();
    let (_, elsewhere) = elsewhere.rsplit_once("---").expect("its second slice");
    let twice = format!("{twice}---{elsewhere}");
    world.write("cart.yaml", twice);
    let said = explain(
        &world,
        CLIENT,
        "172.30.1.1:80",
        &["--manifests", &world.manifests()],
    );
    let rows = said.report["endpoints"].as_array().expect("endpoints");
    let because = |address: &str, words: &str| {
        let is_it = |row: &&serde_json::Value| {
            row["address"] == address
                && row["because"]
                    .as_str()
                    .is_some_and(|said| said.contains(words))
        };
        assert!(rows.iter().any(|row| is_it(&row)), "{address}: {rows:#?}");
    };
    because(
        "10.40.1.20:8080",
        "listed once more, by EndpointSlice cart-1-8080",
    );
    because("10.40.1.20:8081", "no agent runs that would apply it");
}

#[test]
fn reasons_come_from_the_api_server() {
    let world = World::build();
    let server = prepare(&world);
    let (name, from, to, words) = CASES[6];
    server.apply(manifest(name, "172.30.2.7", from, to));
    server.apply(manifest(
        "none",
        "172.30.2.8",
        "endpoints: [",
        "endpoints: [] #",
    ));
    server.apply(
        "{apiVersion: v1, kind: ServiceAccount, metadata: {name: default, namespace: shop}}",
    );
    server.apply("{apiVersion: v1, kind: Pod, metadata: {name: pod-a, namespace: shop, labels: {app: unready}}, spec: {nodeName: node-a, containers: [{name: one, image: none, readinessProbe: {tcpSocket: {port: 80}}}]}}");
    server.kubectl(
        r#"-n shop patch pod pod-a --subresource=status --type=merge --patch {"status":{"phase":"Running","containerStatuses":[{"name":"one","image":"none","imageID":"","restartCount":0,"ready":false,"started":true,"state":{"running":{}}}]}}"#,
    );
    let kubeconfig = server.kubeconfig();
    let agent = world.follow(&kubeconfig);
    crate::agent::eventually("they are refused", &agent, || {
        ["172.30.2.7:80", "172.30.2.8:80"].iter().all(|to| {
            let said = world.connect(to).map(drop);
            said.is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionRefused)
        })
    });
    let flags = ["--kubeconfig", &*kubeconfig];
    let said = explain(&world, CLIENT, "172.30.2.7:80", &flags);
    said.finds("in-the-way", words);
    let said = explain(&world, CLIENT, "172.30.2.8:80", &flags);
    said.finds(
        "in-the-way",
        "its selector app=none matches no pod of namespace shop",
    );

    // The agent's service account may get pods, and not list them.
    server.apply(include_str!("../../../../deploy/base/rbac.yaml"));
    server.kubectl(&format!(
        "create clusterrolebinding account --clusterrole=portolan --user={AGENTS_ACCOUNT}"
    ));
    let read = |path: &str| -> serde_json::Value {
        let text = fs::read_to_string(path).expect("a kubeconfig");
        serde_json::from_str(&text).expect("JSON")
    };
    let mut account = read(&kubeconfig);
    account["users"] = read(&server.agents_kubeconfig())["users"].clone();
    let path = world.path("account.kubeconfig");
    fs::write(&path, account.to_string()).expect("written");
    let flags = ["--kubeconfig", &*path];
    let said = explain(&world, CLIENT, "172.30.2.7:80", &flags);
    said.finds("in-the-way", words);
    let said = explain(&world, CLIENT, "172.30.2.8:80", &flags);
    said.finds("in-the-way", "its EndpointSlices list no endpoint");
    assert!(agent.stop().success());
}
