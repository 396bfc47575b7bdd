// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is made at a real API server for Gateways without addresses, with the rights of `deploy`,
//! and the policy there that limits addresses.

use std::fs;

use lab::node::{api_server::URL, kubeconfig};

use crate::{
    agent::{Agent, eventually, within},
    gateways::{CART, EDGE, ELECTED, gateway, install, of_gateway, route},
    server::{Server, prepare},
    world::World,
};

const RIGHTS: [&str; 3] = [
    include_str!("../../../deploy/base/rbac.yaml"),
    include_str!("../../../xtask/cluster/overlay/gateway-api.yaml"),
    include_str!("../../../xtask/cluster/overlay/gateway-services.yaml"),
];
const POLICY: &str = include_str!("../../../deploy/examples/gateway-addresses.yaml");

/// Returns a server with the kinds, and an agent with the rights of these files only.
fn start(world: &World) -> (Server<'_>, Agent) {
    let server = prepare(world);
    install(&server);
    for file in RIGHTS {
        // kustomize adds the namespace to those without one.
        let file = file.replace(
            "metadata: {name: portolan}\n---",
            "metadata: {name: portolan, namespace: kube-system}\n---",
        );
        server.apply(file);
    }
    let token = server.kubectl("create token portolan --namespace kube-system");
    let file = world.path("kubeconfig");
    fs::write(&file, kubeconfig::render(URL, token.trim())).expect("a kubeconfig");
    let settings = format!(
        "clientConnection: {{kubeconfig: '{file}'}}\nportolan: {{gatewayAPI: true, gatewayServices: true}}\n"
    );
    let agent = world.spawn_by(&[], &["--config", &world.configure(&settings)]);
    (server, agent)
}

/// Returns a field of the Service that is made; empty without the Service.
fn made(server: &Server<'_>, field: &str) -> String {
    let words = format!("get service gateway-edge -n shop -o=jsonpath={{{field}}}");
    server.try_kubectl(&words).unwrap_or_default()
}

/// Returns addresses, node and port of the Service's slices.
fn slices(server: &Server<'_>) -> String {
    let fields = [
        ".items[*].endpoints[*].addresses[*]",
        ".items[*].endpoints[*].nodeName",
        ".items[*].ports[*].name",
        ".items[*].ports[*].port",
    ];
    let fields = fields.map(|field| format!("{{{field}}}")).join("/");
    server.kubectl(&format!(
        "get endpointslices -n shop -l kubernetes.io/service-name=gateway-edge -o=jsonpath={fields}"
    ))
}

#[test]
fn a_gateway_without_addresses_has_those_of_the_service_that_is_made_for_it() {
    let world = World::build();
    let (server, agent) = start(&world);
    server.apply(gateway("edge", "", 9000) + &route("cart", "edge", CART));
    within(ELECTED, "its Service", &agent, || {
        !made(&server, ".spec.clusterIP").is_empty()
    });
    within(ELECTED, "its status", &agent, || {
        of_gateway(&server, "edge", "Programmed") == "False AddressNotAssigned"
    });
    // Load balancers see where traffic can go.
    within(ELECTED, "its slice", &agent, || {
        slices(&server) == "10.40.1.20/node-a/tcp-9000/8080"
    });
    server.kubectl(r#"patch service gateway-edge -n shop --subresource=status --type=merge --patch {"status":{"loadBalancer":{"ingress":[{"ip":"198.51.100.7"}]}}}"#);
    eventually("its load balancer's address", &agent, || {
        world.connect(EDGE).is_ok()
    });
    let cluster_ip = made(&server, ".spec.clusterIP");
    assert!(
        world.connect(&format!("{cluster_ip}:9000")).is_ok(),
        "{cluster_ip}"
    );
    let node_port = made(&server, ".spec.ports[0].nodePort");
    assert!(
        world.connect(&format!("10.40.0.1:{node_port}")).is_ok(),
        "{node_port}"
    );
    within(ELECTED, "its status", &agent, || {
        of_gateway(&server, "edge", "Programmed") == "True Programmed"
    });
    let said = server.kubectl("get gateway edge -n shop -o=jsonpath={.status.addresses[*].value}");
    assert_eq!(said, "198.51.100.7");
    server.kubectl("delete gateway edge -n shop");
    within(ELECTED, "all is gone", &agent, || {
        made(&server, ".spec.clusterIP").is_empty() && slices(&server) == "///"
    });
    assert!(!agent.log().contains("could not"), "{}", agent.log());
}

#[test]
fn the_policy_in_deploy_limits_the_addresses_of_gateways() {
    let world = World::build();
    let server = prepare(&world);
    install(&server);
    let before = gateway(
        "before",
        ", addresses: [{type: IPAddress, value: 10.40.0.9}]",
        9000,
    );
    server.apply(before.clone());
    server.apply(POLICY);
    let with = |address: &str| {
        let addresses = format!(", addresses: [{{type: IPAddress, value: '{address}'}}]");
        gateway("edge", &addresses, 9000)
    };
    // The server takes the policy into account after a moment.
    let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while server.refusal(&with("10.40.0.1")).is_none() {
        assert!(std::time::Instant::now() < until, "not in force");
        std::thread::sleep(std::time::Duration::from_millis(200));
    }
    for refused in [
        "10.40.0.1",
        "172.30.0.1",
        "2001:db8:2::1",
        "::ffff:198.51.100.7",
    ] {
        let said = server.refusal(&with(refused)).unwrap_or_default();
        assert!(
            said.contains("is in none of the ranges"),
            "{refused}: {said}"
        );
    }
    // One from before can be changed, but for its addresses.
    assert_eq!(server.refusal(&before.replace("9000", "9001")), None);
    let moved = server.refusal(&before.replace("10.40.0.9", "10.40.0.1"));
    assert!(moved.is_some_and(|said| said.contains("10.40.0.1")));
    for allowed in ["198.51.100.7", "2001:db8:1::7"] {
        assert_eq!(server.refusal(&with(allowed)), None);
    }
    for rest in ["", ", addresses: [{type: IPAddress}]"] {
        assert_eq!(server.refusal(&gateway("edge", rest, 9000)), None);
    }
}
