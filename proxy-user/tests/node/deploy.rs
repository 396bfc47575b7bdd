// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The agent runs with exactly the permissions that the manifests in `deploy/` give.

use std::fs;

use lab::node::{api_server::URL, kubeconfig, rights};

use crate::{agent::eventually, cluster::CART, explain, server::prepare, world::World};

#[test]
fn the_agent_needs_no_right_that_deploy_does_not_give() {
    let world = World::build();
    let server = prepare(&world);
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/overlays/kubeadm");
    server.apply(server.kubectl(&format!("kustomize {folder}")));
    let token = server.kubectl("create token portolan --namespace kube-system");
    let file = world.path("kubeconfig");
    fs::write(&file, kubeconfig::render(URL, token.trim())).expect("a kubeconfig");
    let given = rights::capabilities();
    assert!(!given.iter().any(|name| name == "sys_admin"), "{given:?}");
    world.confine();
    let agent = world.follow(&file);
    eventually("it serves", &agent, || world.connect(CART).is_ok());
    eventually("it is healthy", &agent, || agent.health().0 == 200);
    // The agent does all of its work: connections and services come and go, UDP backends are lost.
    server.kubectl("delete service cart --namespace shop");
    eventually("it follows", &agent, || world.connect(CART).is_err());
    assert!(!agent.log().contains("WARN"), "{}", agent.log());
    // An operator's command in the agent's pod asks about another pod by name.
    let from = ["--from", "pod/shop/gone", "--to", "service/shop/till:80"];
    let token = ["--kubeconfig", file.as_str()];
    let asked = explain::run(&world, &[&from[..], &token].concat());
    let said = String::from_utf8_lossy(&asked.stderr);
    assert!(said.contains("there is no pod shop/gone"), "{said}");
    let user = "--as=system:serviceaccount:kube-system:portolan";
    for verb in ["get", "create"] {
        server.kubectl(&format!("auth can-i {verb} events.events.k8s.io {user}"));
    }
    // The agent has no other permissions.
    for (verb, kind) in [
        ("list", "events"),
        ("get", "secrets"),
        ("create", "pods"),
        ("list", "pods"),
        ("update", "services"),
    ] {
        let words = format!("auth can-i {verb} {kind} --all-namespaces {user}");
        let answer = server.try_kubectl(&words);
        assert!(answer.is_err(), "{verb} {kind}: {answer:?}");
    }
}
