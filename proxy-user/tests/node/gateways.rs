// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Gateways and their routes at a real API server: served to real connections, with the status that
//! the agent writes.

use std::{io::ErrorKind, time::Duration};

use crate::{
    agent::{Agent, eventually, within},
    connection::Open,
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
    let settings = format!(
        "clientConnection: {{kubeconfig: '{}'}}\nportolan: {{gatewayAPI: true, gatewayServices: true}}\n",
        server.kubeconfig()
    );
    let agent = world.spawn_by(&[], &["--config", &world.configure(&settings)]);
    (server, agent)
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

/// Returns the agent's events about a route, a line each.
fn events(server: &Server<'_>, route: &str) -> String {
    server.kubectl(&format!(
        "get events -n shop --field-selector=reason=NotServed,involvedObject.kind=TCPRoute,involvedObject.name={route} --no-headers -o=custom-columns=T:.type,M:.message"
    ))
}

#[test]
fn a_route_leads_to_its_service_and_status_and_event_say_what_is_missing() {
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

    // Half of the route goes to a Service that does not exist: so many connections are refused, at
    // sockets of the node, too, and the next route is served all the same.
    let missing = "{name: none, port: 80, weight: 1}";
    server.apply(route("cart", "edge", &format!("{CART}, {missing}")));
    let other = gateway("other", ADDRESS, 9001) + &route("other", "other", CART);
    server.apply(other);
    eventually("the other", &agent, || answers("198.51.100.7:9001"));
    within(ELECTED, "the missing backend", &agent, || {
        of_route(&server, "cart", "ResolvedRefs") == "False BackendNotFound"
    });
    let from_pod = || world.connect(EDGE);
    let from_node = || world.connect_from_node(EDGE);
    let refused = |connect: &dyn Fn() -> std::io::Result<Open>| {
        let all = (0..200).map(|_| connect().map(drop));
        let errors: Vec<_> = all.filter_map(Result::err).collect();
        let is_refusal = |error: &std::io::Error| error.kind() == ErrorKind::ConnectionRefused;
        assert!(errors.iter().all(is_refusal), "{errors:?}: {}", agent.log());
        errors.len()
    };
    let refused = [refused(&from_pod), refused(&from_node)];
    let is_half = |count: &usize| (60..140).contains(count);
    assert!(refused.iter().all(is_half), "{refused:?} of 200");
    // A node waits up to 30 s, in which another could write the event.
    within(Duration::from_secs(60), "the event", &agent, || {
        events(&server, "cart").starts_with("Warning ")
    });
    let [event, log] = [events(&server, "cart"), agent.log()];
    for said in [event, log] {
        let count = said.matches("there is no Service shop/none").count();
        assert_eq!(count, 1, "{said}");
    }
    assert_eq!(events(&server, "other"), "");
    // A Service that comes is found.
    server.apply(service("none", "172.30.1.77"));
    within(ELECTED, "it is resolved", &agent, || {
        of_route(&server, "cart", "ResolvedRefs") == "True ResolvedRefs"
    });
    assert_eq!((0..20).filter(|_| answers(EDGE)).count(), 20);
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
fn a_namespace_that_is_being_deleted_is_no_failure() {
    let world = World::build();
    let (server, agent) = start(&world);
    let gateway = gateway("edge", "", 9000).replace("namespace: shop", "namespace: till");
    server.apply(format!(
        "{{apiVersion: v1, kind: Namespace, metadata: {{name: till}}}}\n---\n{gateway}"
    ));
    let made = || server.try_kubectl("get service gateway-edge -n till");
    eventually("its Service", &agent, || made().is_ok());
    // Nobody here empties the namespace, so this test does, in the worst order.
    server.kubectl("delete namespace till --wait=false");
    server.kubectl("delete service gateway-edge -n till");
    let refused = || {
        let metrics = agent.metrics("/metrics");
        let mut lines = metrics.lines();
        lines.any(|line| line.contains("code=\"403\"") && line.contains("PATCH"))
    };
    eventually("the Service is refused", &agent, refused);
    server.kubectl("delete gateway edge -n till");
    server.erase("/registry/namespaces/till");
    eventually("nothing is left", &agent, || {
        !world.told(&["services"]).contains("gateway:")
    });
    assert!(!agent.log().contains("could not"), "{}", agent.log());
}
