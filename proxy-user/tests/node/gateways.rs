// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Gateways and their routes at a real API server: served to real connections, with the status that
//! the agent writes.

mod events;
mod many;
mod removal;

use std::{io::ErrorKind, time::Duration};

use crate::{
    agent::{Agent, eventually, within},
    objects::service,
    server::{Server, prepare},
    world::World,
};

/// The kinds of the Gateway API.
const KINDS: &str = include_str!("../../../xtask/cluster/gateway-api.yaml");
const CLASS: &str = "{apiVersion: gateway.networking.k8s.io/v1, kind: GatewayClass, metadata: {name: l4}, spec: {controllerName: portolan.dev/l4}}\n---\n";
pub(crate) const EDGE: &str = "198.51.100.7:9000";
/// The agent that has the lease gets it after a time drawn up to 5 s.
pub(crate) const ELECTED: Duration = Duration::from_secs(20);

pub(crate) fn gateway(name: &str, rest: &str, port: u16) -> String {
    format!(
        "{{apiVersion: gateway.networking.k8s.io/v1, kind: Gateway, metadata: {{name: {name}, namespace: shop}}, spec: {{gatewayClassName: l4{rest}, listeners: [{{name: web, protocol: TCP, port: {port}}}]}}}}\n---\n"
    )
}

pub(crate) fn route(name: &str, gateway: &str, backends: &str) -> String {
    format!(
        "{{apiVersion: gateway.networking.k8s.io/v1, kind: TCPRoute, metadata: {{name: {name}, namespace: shop}}, spec: {{parentRefs: [{{name: {gateway}}}], rules: [{{backendRefs: [{backends}]}}]}}}}\n---\n"
    )
}

pub(crate) const ADDRESS: &str = ", addresses: [{type: IPAddress, value: 198.51.100.7}]";
pub(crate) const CART: &str = "{name: cart, port: 80}";

/// Returns a server with the kinds and the class, and an agent that serves them.
fn start(world: &World) -> (Server<'_>, Agent) {
    let server = prepare(world);
    install(&server);
    let agent = follow(world, &server.kubeconfig());
    (server, agent)
}

fn follow(world: &World, kubeconfig: &str) -> Agent {
    let settings = format!(
        "clientConnection: {{kubeconfig: '{kubeconfig}'}}\nportolan: {{gatewayAPI: true, gatewayServices: true}}\n"
    );
    world.spawn_by(&[], &["--config", &world.configure(&settings)])
}

/// Installs the kinds and the class.
pub(crate) fn install(server: &Server<'_>) {
    server.apply(KINDS);
    server.kubectl("wait --for=condition=Established --timeout=30s crd --all");
    server.apply(CLASS);
}

/// Returns a condition of an object as `STATUS REASON`.
fn condition(server: &Server<'_>, object: &str, at: &str, kind: &str) -> String {
    let path = format!("{at}[?(@.type==\"{kind}\")]");
    let of = |field: &str| {
        let words = format!("get {object} -n shop -o=jsonpath={{{path}.{field}}}");
        server.try_kubectl(&words).unwrap_or_default()
    };
    format!("{} {}", of("status"), of("reason"))
}

pub(crate) fn of_gateway(server: &Server<'_>, name: &str, kind: &str) -> String {
    condition(
        server,
        &format!("gateway {name}"),
        ".status.conditions",
        kind,
    )
}

fn of_route(server: &Server<'_>, name: &str, kind: &str) -> String {
    condition(
        server,
        &format!("tcproute {name}"),
        ".status.parents[0].conditions",
        kind,
    )
}

#[test]
fn a_route_leads_to_its_service_and_the_status_says_so() {
    let world = World::build();
    let (server, agent) = start(&world);
    let answers = |to: &str| world.connect(to).is_ok();
    server.apply(gateway("edge", ADDRESS, 9000) + &route("cart", "edge", CART));
    eventually("the route", &agent, || answers(EDGE));
    within(ELECTED, "the status", &agent, || {
        of_gateway(&server, "edge", "Programmed") == "True Programmed"
            && of_route(&server, "cart", "Accepted") == "True Accepted"
            && of_route(&server, "cart", "ResolvedRefs") == "True ResolvedRefs"
    });
    let of_class = server.kubectl("get gatewayclass l4 -o=jsonpath={.status.conditions[*].status}");
    assert_eq!(of_class, "True");
    let holder = "get lease portolan-gateway-api -n kube-system -o=jsonpath={.spec.holderIdentity}";
    assert_eq!(server.kubectl(holder), "node-a");
    let shown = world.told(&["services"]);
    assert!(shown.contains("shop/gateway:edge"), "{shown}");
    // The route goes to a Service that does not exist: refused, said in status and event, and the
    // next route is served all the same.
    server.apply(route("cart", "edge", "{name: none, port: 80}"));
    let other = gateway("other", ADDRESS, 9001) + &route("other", "other", CART);
    server.apply(other);
    eventually("it is refused", &agent, || {
        world
            .connect(EDGE)
            .is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
    });
    eventually("the other", &agent, || answers("198.51.100.7:9001"));
    within(ELECTED, "the missing backend", &agent, || {
        of_route(&server, "cart", "ResolvedRefs") == "False BackendNotFound"
    });
    agent.says(&[
        "WARN",
        "TCPRoute shop/cart",
        "there is no Service shop/none",
    ]);
    // A Service that comes is found.
    server.apply(service("none", "172.30.1.77"));
    eventually("it is served", &agent, || answers(EDGE));
    within(ELECTED, "it is resolved", &agent, || {
        of_route(&server, "cart", "ResolvedRefs") == "True ResolvedRefs"
    });
    server.kubectl("delete gateway edge other -n shop");
    server.kubectl("delete gatewayclass l4");
    server.kubectl("delete tcproute cart other -n shop");
    eventually("nothing is left", &agent, || {
        !world.told(&["services"]).contains("gateway:")
    });
    assert!(answers("172.30.1.1:80"));
    assert!(agent.stop().success());
    assert_eq!(server.kubectl(holder), "", "the lease is given up");
}

#[test]
fn a_missing_backends_share_of_connections_is_refused() {
    let world = World::build();
    let (server, agent) = start(&world);
    server.apply(
        gateway("edge", ADDRESS, 9000)
            + &route(
                "cart",
                "edge",
                &format!("{CART}, {{name: none, port: 80, weight: 1}}"),
            ),
    );
    eventually("the route", &agent, || world.connect(EDGE).is_ok());
    let (mut served, mut refused) = (0, 0);
    for _ in 0..200 {
        match world.connect(EDGE) {
            Ok(_) => served += 1,
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => refused += 1,
            Err(error) => panic!("{error}: {}", agent.log()),
        }
    }
    assert!(
        (60..140).contains(&refused),
        "{served} served, {refused} refused"
    );
    // The node's own connections are refused alike, at their socket.
    let refused = (0..200).filter(|_| {
        let connected = world.connect_from_node(EDGE);
        connected.is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
    });
    let refused = refused.count();
    assert!((60..140).contains(&refused), "{refused} refused");
}

#[test]
fn a_server_without_the_kinds_is_followed_without_a_word() {
    let world = World::build();
    let server = prepare(&world);
    let agent = follow(&world, &server.kubeconfig());
    eventually("the first service", &agent, || {
        world.connect("172.30.1.1:80").is_ok()
    });
    eventually("it is ready", &agent, || agent.health().0 == 200);
    assert!(!agent.log().contains("WARN"), "{}", agent.log());
    assert!(
        !agent.log().to_lowercase().contains("gateway"),
        "{}",
        agent.log()
    );
}

#[test]
fn without_the_setting_gateways_are_left_alone() {
    let world = World::build();
    let server = prepare(&world);
    server.apply(KINDS);
    server.kubectl("wait --for=condition=Established --timeout=30s crd --all");
    server.apply(CLASS.to_owned() + &gateway("edge", ADDRESS, 9000) + &route("cart", "edge", CART));
    let agent = world.follow(&server.kubeconfig());
    eventually("the first service", &agent, || {
        world.connect("172.30.1.1:80").is_ok()
    });
    assert!(!world.told(&["services"]).contains("gateway"));
}
