// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Names of pods and services, and endpoints that only Kubernetes knows.

use super::{OUTSIDE, explain, outside, run};
use crate::{
    agent::eventually,
    objects::{Service, pod_endpoint},
    server::prepare,
    world::World,
};

/// A service with more endpoints: one not ready, one terminating, one that is the client.
fn cart() -> Service {
    Service::new("cart", "172.30.1.1").endpoints(vec![
        pod_endpoint("10.40.1.31", "cart-new", [false, false, false]),
        pod_endpoint("10.40.1.32", "cart-old", [false, true, true]),
        pod_endpoint("10.40.1.10", "buyer", [false, false, false]),
        pod_endpoint("10.40.1.20", "cart-a", [true, true, false]),
    ])
}

#[test]
fn explain_names_pods_and_says_why_an_endpoint_is_not_selected() {
    let world = World::build();
    world.write("cart.yaml", cart());
    let agent = world.start_by_stack(7);
    let folder = world.manifests();
    let flags = ["--manifests", &folder];
    let said = explain(&world, "pod/shop/buyer", "service/shop/cart:80", &flags);
    assert_eq!(said.status, 4, "{:#}", said.report);
    assert_eq!(said.report["client"], "pod/shop/buyer (10.40.1.10)");
    let row = |address: &str| {
        let rows = said.report["endpoints"].as_array().expect("endpoints");
        let found = rows.iter().find(|row| row["address"] == address);
        found
            .unwrap_or_else(|| panic!("{address}: {:#}", said.report))
            .clone()
    };
    let able = row("10.40.1.20:8080");
    assert_eq!(
        (&able["pod"], &able["canAnswer"]),
        (&"shop/cart-a".into(), &true.into())
    );
    let new = row("10.40.1.31");
    assert_eq!(
        (&new["pod"], &new["because"]),
        (&"shop/cart-new".into(), &"not ready".into())
    );
    let old = row("10.40.1.32:8080");
    assert_eq!(old["because"], "terminating, while others are ready");
    assert_eq!(old["canAnswer"], false);
    assert!(agent.stop().success());
}

/// The report on a page: the text block after the line with this command.
fn report_of_page(page: &str, command: &str) -> String {
    let (_, rest) = page.split_once(command).expect("the command");
    let lines = rest.lines().skip(1);
    let block = lines.take_while(|line| line.is_empty() || line.starts_with("    "));
    let block: Vec<_> = block
        .map(|line| line.strip_prefix("    ").unwrap_or(line))
        .collect();
    block.join("\n").trim().to_owned()
}

#[test]
fn the_report_in_explain_md_is_what_the_command_prints() {
    let world = World::build();
    world.write("cart.yaml", cart());
    let _outside = outside(&world);
    assert!(world.start_by_stack(7).stop().success());
    let folder = world.manifests();
    let flags = [
        "--from",
        OUTSIDE,
        "--to",
        "10.40.0.1:30001",
        "--manifests",
        &folder,
    ];
    let output = run(&world, &flags);
    assert_eq!(output.status.code(), Some(4), "{output:?}");
    let text = String::from_utf8(output.stdout).expect("text");
    let incoming = world.interface_to(OUTSIDE);
    let text = text.replace(&format!("by {incoming}"), "by eth0");
    let page = include_str!("../../../../docs/explain.md");
    let shown = report_of_page(page, "--from 198.51.100.7 --to 10.40.0.1:30001");
    assert_eq!(text.trim(), shown, "{text}");
}

#[test]
fn pods_are_named_by_the_api_server_in_explain_and_in_flows() {
    let world = World::build();
    let server = prepare(&world);
    server.apply(cart());
    server.apply(
        "{apiVersion: v1, kind: ServiceAccount, metadata: {name: default, namespace: shop}}",
    );
    server.apply("{apiVersion: v1, kind: Pod, metadata: {name: buyer, namespace: shop}, spec: {nodeName: node-a, containers: [{name: one, image: none}]}}");
    server.kubectl(
        r#"-n shop patch pod buyer --subresource=status --type=merge --patch {"status":{"podIPs":[{"ip":"10.40.1.10"}],"podIP":"10.40.1.10"}}"#,
    );
    let kubeconfig = ["--kubeconfig", &server.kubeconfig()];
    let agent = world.follow(kubeconfig[1]);
    eventually("it is served", &agent, || {
        world.connect("172.30.1.1:80").is_ok()
    });
    let said = explain(&world, "pod/shop/buyer", "service/shop/cart", &kubeconfig);
    assert_eq!(said.status, 4, "{:#}", said.report);
    assert_eq!(said.report["client"], "pod/shop/buyer (10.40.1.10)");
    let rows = said.report["endpoints"].as_array().expect("endpoints");
    let names: Vec<_> = rows.iter().filter_map(|row| row["pod"].as_str()).collect();
    assert!(
        names.contains(&"shop/cart-a") && names.contains(&"shop/cart-new"),
        "{rows:?}"
    );
    let flows = world.json(&[&["flows", "cart"], &kubeconfig[..]].concat());
    assert_eq!(flows[0]["clientPod"], "shop/buyer", "{flows}");
    let gone = ["--from", "pod/shop/gone", "--to", "service/shop/cart"];
    let output = run(&world, &[&gone[..], &kubeconfig].concat());
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2));
    assert!(said.contains("there is no pod shop/gone"), "{said}");
    assert!(agent.stop().success());
}
