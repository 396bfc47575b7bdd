// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Gateways and their routes at a real API server: served to real connections, with the status that
//! the controller writes; what it makes there for Gateways without addresses; both with the rights
//! of `deploy` only, which docs/security.md lists; and the policy there that limits addresses.

use std::{
    fs::{self, File},
    io::{self, ErrorKind},
    process::Command,
    time::Duration,
};

use lab::node::process::Killed;
use nix::sys::signal::Signal;

use crate::{
    agent::{Agent, send_signal, wait},
    objects::Service,
    server::{Server, prepare},
    world::{BINARY, World, complete},
};

/// The manifests of the agents and of the controller, with the rights for Gateways.
const MANIFESTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../xtask/cluster/overlay");
const SECURITY: &str = include_str!("../../../docs/security.md");
const POLICY: &str = include_str!("../../../deploy/examples/gateway-addresses.yaml");

/// The kinds of the Gateway API.
const KINDS: &str = include_str!("../../../xtask/cluster/gateway-api.yaml");
const CLASS: &str = "{apiVersion: gateway.networking.k8s.io/v1, kind: GatewayClass, metadata: {name: l4}, spec: {controllerName: portolan.dev/l4}}\n---\n";
const EDGE: &str = "198.51.100.7:9000";
/// How long the controller may take.
const WRITTEN: Duration = Duration::from_secs(20);

fn gateway(name: &str, rest: &str, port: u16) -> String {
    format!(
        "{{apiVersion: gateway.networking.k8s.io/v1, kind: Gateway, metadata: {{name: {name}, namespace: shop}}, spec: {{gatewayClassName: l4{rest}, listeners: [{{name: web, protocol: TCP, port: {port}}}]}}}}\n---\n"
    )
}

fn route(name: &str, gateway: &str, backends: &str) -> String {
    format!(
        "{{apiVersion: gateway.networking.k8s.io/v1, kind: TCPRoute, metadata: {{name: {name}, namespace: shop}}, spec: {{parentRefs: [{{name: {gateway}}}], rules: [{{backendRefs: [{backends}]}}]}}}}\n---\n"
    )
}

const ADDRESS: &str = ", addresses: [{type: IPAddress, value: 198.51.100.7}]";
const CART: &str = "{name: cart, port: 80}";

#[test]
fn routes_and_services_of_gateways_are_served_and_their_status_written_with_the_rights_of_deploy() {
    let world = World::build();
    let server = prepare(&world);
    server.apply(KINDS);
    server.kubectl("wait --for=condition=Established --timeout=30s crd --all");
    server.apply(CLASS);
    server.apply(server.kubectl(&format!("kustomize {MANIFESTS}")));
    no_other_right_is_given_than_the_page_says(&server);
    let settings = |account: &str| {
        let file = server.kubeconfig_of(&world, account);
        format!(
            "clientConnection: {{kubeconfig: '{file}'}}\nportolan: {{gatewayAPI: true, gatewayServices: true}}\n"
        )
    };
    let config = world.configure(&settings("portolan"));
    let agent = world.spawn_by(&[], &["--config", &config]);
    let mut controller = control(&world, &settings("portolan-controller"));
    a_route_leads_to_its_service_and_status_and_event_say_what_is_missing(&world, &server, &agent);
    a_gateway_without_any_has_its_services(&world, &server, &agent);
    // KUBE: policies know addresses since 1.31.
    if server.minor() >= 31 {
        the_policy_in_deploy_limits_the_addresses_of_gateways(&server);
    }
    server.kubectl("delete gateway --all -n shop");
    server.kubectl("delete gatewayclass l4");
    assert!(world.answers("172.30.1.1:80"));
    let log = fs::read_to_string(world.path(LOG)).expect("its log");
    assert!(!log.contains("could not"), "{log}");
    send_signal(controller.0.id(), Signal::SIGTERM).expect("it runs");
    assert!(controller.0.wait().expect("its end").success());
    assert_eq!(server.kubectl(HOLDER), "", "the lease is given up");
}

/// The controller's log.
const LOG: &str = "controller.log";

/// Starts the controller with these settings.
fn control(world: &World, settings: &str) -> Killed {
    let config = world.path("controller.yaml");
    fs::write(&config, complete(settings)).expect("a config");
    let mut command = Command::new(BINARY);
    let log = File::create(world.path(LOG)).expect("a log");
    let command = command.args(["controller", "--config", &config]);
    Killed(world.begin(command.stderr(log)))
}

/// The page has a line for each kind: what of it, the verbs, and perhaps when.
fn no_other_right_is_given_than_the_page_says(server: &Server<'_>) {
    for account in ["portolan", "portolan-controller"] {
        let asked = format!("--as=system:serviceaccount:kube-system:{account} -n kube-system");
        let given = server.kubectl(&format!("auth can-i --list --no-headers {asked}"));
        // KUBE: what every account may, the last one since 1.37.
        let every = [" ", "[", "selfsubject", "clustertrustbundles"];
        let own = |line: &&str| every.iter().all(|one| !line.starts_with(one));
        let mut given: Vec<_> = given.lines().filter(own).map(right).collect();
        given.sort_unstable();
        let listed = SECURITY.split_once(&format!("`{account}`:\n\n"));
        let (_, listed) = listed.expect("a list");
        let listed = listed.lines().map_while(|line| line.strip_prefix("    "));
        let listed = listed.filter_map(|line| Some(line.split('#').next()?.trim().to_owned()));
        assert_eq!(given, listed.collect::<Vec<_>>(), "{account}");
    }
}

/// Returns a line of `kubectl auth can-i --list`, with its verbs sorted and without empty columns.
fn right(line: &str) -> String {
    let columns = line.split(['[', ']']).map(str::trim);
    let columns: Vec<_> = columns.filter(|column| !column.is_empty()).collect();
    let (verbs, rest) = columns.split_last().expect("columns");
    let mut verbs: Vec<_> = verbs.split(' ').collect();
    verbs.sort_unstable();
    format!("{}: {}", rest.join(" "), verbs.join(" "))
}

/// Waits until a condition of a Gateway or a route is `STATUS REASON`.
fn becomes(server: &Server<'_>, object: &str, kind: &str, wanted: &str) {
    let is_route = object.starts_with("tcproute");
    let parent = if is_route { ".parents[0]" } else { "" };
    let path = format!(".status{parent}.conditions[?(@.type==\"{kind}\")]");
    let of = |field: &str| {
        let words = format!("get {object} -n shop -o=jsonpath={{{path}.{field}}}");
        server.try_kubectl(&words).unwrap_or_default()
    };
    let is_so = || format!("{} {}", of("status"), of("reason")) == wanted;
    wait(WRITTEN, wanted, is_so);
}

/// Returns the events about a route, a line each.
fn events(server: &Server<'_>, route: &str) -> String {
    server.kubectl(&format!(
        "get events -n shop --field-selector=reason=NotServed,involvedObject.kind=TCPRoute,involvedObject.name={route} --no-headers -o=custom-columns=T:.type,M:.message"
    ))
}

const HOLDER: &str =
    "get lease portolan-controller -n kube-system -o=jsonpath={.spec.holderIdentity}";

fn a_route_leads_to_its_service_and_status_and_event_say_what_is_missing(
    world: &World,
    server: &Server<'_>,
    agent: &Agent,
) {
    server.apply(gateway("edge", ADDRESS, 9000) + &route("cart", "edge", CART));
    agent.eventually("the route", || world.answers(EDGE));
    becomes(server, "gateway edge", "Programmed", "True Programmed");
    becomes(server, "tcproute cart", "Accepted", "True Accepted");
    becomes(server, "tcproute cart", "ResolvedRefs", "True ResolvedRefs");
    let of_class = server.kubectl("get gatewayclass l4 -o=jsonpath={.status.conditions[*].status}");
    assert_eq!(of_class, "True");
    assert_ne!(server.kubectl(HOLDER), "");
    let shown = world.told("services");
    assert!(shown.contains("shop/gateway:edge"), "{shown}");

    // Half of the route goes to a Service that does not exist; the next route is served still.
    let missing = "{name: none, port: 80, weight: 1}";
    server.apply(route("cart", "edge", &format!("{CART}, {missing}")));
    server.apply(gateway("other", ADDRESS, 9001) + &route("other", "other", CART));
    agent.eventually("the other", || world.answers("198.51.100.7:9001"));
    let missed = "False BackendNotFound";
    becomes(server, "tcproute cart", "ResolvedRefs", missed);
    // So many connections are refused, at sockets of the node, too.
    let is_refusal = |error: &io::Error| error.kind() == ErrorKind::ConnectionRefused;
    for connect in [World::connect, World::connect_from_node] {
        let all = (0..200).map(|_| connect(world, EDGE));
        let errors: Vec<_> = all.filter_map(Result::err).collect();
        let is_half = (60..140).contains(&errors.len()) && errors.iter().all(is_refusal);
        assert!(is_half, "{errors:?}: {}", agent.log());
    }
    let is_warned = || events(server, "cart").starts_with("Warning ");
    agent.within(WRITTEN, "the event", is_warned);
    let [event, log] = [events(server, "cart"), agent.log()];
    for said in [event, log] {
        let count = said.matches("there is no Service shop/none").count();
        assert_eq!(count, 1, "{said}");
    }
    assert_eq!(events(server, "other"), "");
    // A Service that comes is found.
    server.apply(Service::new("none", "172.30.1.77"));
    becomes(server, "tcproute cart", "ResolvedRefs", "True ResolvedRefs");
    assert_eq!((0..20).filter(|_| world.answers(EDGE)).count(), 20);
    server.kubectl("delete gateway edge other -n shop");
    server.kubectl("delete tcproute cart other -n shop");
    agent.eventually("nothing is left", || !world.lists("gateway:"));
}

/// Returns a field of the Service that is made; empty without the Service.
fn made(server: &Server<'_>, field: &str) -> String {
    let words = format!("get service gateway-edge -n shop -o=jsonpath={{{field}}}");
    server.try_kubectl(&words).unwrap_or_default()
}

/// Returns addresses and ports of the Service's slices.
fn slices(server: &Server<'_>) -> String {
    server.kubectl(
        "get endpointslices -n shop -l kubernetes.io/service-name=gateway-edge \
         -o=jsonpath={.items[*].endpoints[*].addresses[*]}/{.items[*].ports[*].port}",
    )
}

fn a_gateway_without_any_has_its_services(world: &World, server: &Server<'_>, agent: &Agent) {
    server.apply(gateway("edge", "", 9000) + &route("cart", "edge", CART));
    let is_made = || !made(server, ".spec.clusterIP").is_empty();
    agent.within(WRITTEN, "its Service", is_made);
    let missed = "False AddressNotAssigned";
    becomes(server, "gateway edge", "Programmed", missed);
    // Load balancers see where traffic can go.
    agent.within(WRITTEN, "its slice", || slices(server) == "10.40.1.20/8080");
    server.kubectl(r#"patch service gateway-edge -n shop --subresource=status --type=merge --patch {"status":{"loadBalancer":{"ingress":[{"ip":"198.51.100.7"}]}}}"#);
    agent.eventually("its load balancer's address", || world.answers(EDGE));
    let cluster_ip = made(server, ".spec.clusterIP");
    assert!(world.answers(&format!("{cluster_ip}:9000")), "{cluster_ip}");
    let node_port = format!("10.40.0.1:{}", made(server, ".spec.ports[0].nodePort"));
    assert!(world.answers(&node_port), "{node_port}");
    becomes(server, "gateway edge", "Programmed", "True Programmed");
    let said = server.kubectl("get gateway edge -n shop -o=jsonpath={.status.addresses[*].value}");
    assert_eq!(said, "198.51.100.7");
    // KUBE: what it owns goes with it, by the garbage collector, which does not run here.
    assert_eq!(made(server, ".metadata.ownerReferences[*].kind"), "Gateway");
    server.kubectl("delete gateway edge -n shop");
    server.kubectl("delete service gateway-edge -n shop");
    agent.eventually("nothing is left", || !world.lists("gateway"));
}

fn the_policy_in_deploy_limits_the_addresses_of_gateways(server: &Server<'_>) {
    let with = |address: &str| {
        let addresses = format!(", addresses: [{{type: IPAddress, value: '{address}'}}]");
        gateway("edge", &addresses, 9000)
    };
    let before = with("10.40.0.9").replace("name: edge", "name: before");
    server.apply(before.clone());
    server.apply(POLICY);
    // The server takes the policy into account after a moment.
    let is_refused = || server.refusal(&with("10.40.0.1")).is_some();
    wait(Duration::from_secs(60), "it is in force", is_refused);
    let mapped = "::ffff:198.51.100.7";
    for refused in ["10.40.0.1", "172.30.0.1", "2001:db8:2::1", mapped] {
        let said = server.refusal(&with(refused)).unwrap_or_default();
        let named = said.contains("is in none of the ranges");
        assert!(named, "{refused}: {said}");
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
