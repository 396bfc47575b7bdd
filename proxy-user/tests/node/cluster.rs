// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The agent as a client of a real API server, with exactly the permissions that the manifests in
//! `deploy/` give: objects made there are served, and nothing is lost while the server is away.
//! Also `wait` for the rules of a real kube-proxy, before the agent begins, and how soon the agent
//! notices that its connections to the API server are dead.

use std::{
    env,
    process::{Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use lab::node::{kube_proxy::KubeProxy, options::METRICS, rights};
use proxy_common::Counter;

use crate::{
    agent::{Agent, wait},
    check::{a_server_that_is_away_is_named, services_are_read_and_no_events_written},
    explain,
    objects::Service,
    server::{Server, prepare},
    world::{BINARY, CART, World},
};

const MORE: &str = "172.30.1.2:80";
/// 45 s, and what a busy machine adds.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

#[test]
fn objects_of_the_api_server_are_followed_and_its_outages_outlived_with_the_rights_of_deploy() {
    let world = World::build();
    let mut server = prepare(&world);
    explain::make_pods(&server);
    services_are_read_and_no_events_written(&world, &server);
    // KUBE: kube-proxy selects Services by a field that older servers do not know.
    if server.minor() >= 31 {
        wait_ends_with_kube_proxys_rules(&world, &server);
    }
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/overlays/kubeadm");
    server.apply(server.kubectl(&format!("kustomize {folder}")));
    let given = rights::capabilities();
    assert!(!given.iter().any(|name| name == "sys_admin"), "{given:?}");
    world.confine();
    let file = server.kubeconfig_of(&world, "portolan");
    let flags = ["--kubeconfig", &file, "--proxy-mode", "nftables"];
    let agent = world.spawn_by(&[], &flags);
    no_other_right_is_needed(&world, &server, &agent, &file);
    explain::pods_and_reasons_come_from_the_api_server(&world, &server, &agent, &file);
    changes_are_followed_and_an_event_written(&world, &server, &agent);
    dead_connections_are_replaced(&world, &server, &agent);
    an_outage_of_the_server_is_outlived(&world, &mut server, &agent);
}

fn no_other_right_is_needed(world: &World, server: &Server<'_>, agent: &Agent, kubeconfig: &str) {
    // The agent does all of its work: connections and services come and go, UDP backends are lost.
    agent.eventually("it serves", || world.answers(CART));
    agent.eventually("it is healthy", || agent.health().0 == 200);
    assert!(!agent.log().contains("WARN"), "{}", agent.log());
    server.apply(explain::cart());
    // An operator's command in the agent's pod asks about another pod by name.
    let question = "--from pod/shop/gone --to service/shop/till:80 --kubeconfig";
    let asked = explain::run(world, &format!("{question} {kubeconfig}"));
    let said = String::from_utf8_lossy(&asked.stderr);
    assert_eq!(asked.status.code(), Some(2), "{said}");
    let expected = "no EndpointSlice names the pod shop/gone";
    assert!(said.contains(expected), "{said}");
}

fn changes_are_followed_and_an_event_written(world: &World, server: &Server<'_>, agent: &Agent) {
    server.apply(include_str!("external.yaml"));
    agent.eventually("the first service", || world.answers(CART));
    let dropped = || world.count(Counter::DroppedUnallocated);
    let before = dropped();
    assert!(world.answers(CART));
    assert_eq!(dropped(), before);
    assert!(!world.answers("172.30.200.200:80"));
    // KUBE: the ranges of cluster IPs are objects since 1.33.
    let has_ranges = server.minor() >= 33;
    assert_eq!(dropped() > before, has_ranges, "{}", agent.log());
    server.apply(Service::new("more", "172.30.1.2"));
    agent.eventually("a new service", || world.answers(MORE));
    assert!(world.answers("10.40.0.1:30002"), "by its node port");
    // This label gives the service to another proxy; without the label, portolan serves it again.
    let label = "label service more -n shop service.kubernetes.io/service-proxy-name";
    server.kubectl(&format!("{label}=other"));
    agent.eventually("it is another's", || !world.answers(MORE));
    server.kubectl(&format!("{label}-"));
    agent.eventually("it is ours again", || world.answers(MORE));
    server.kubectl("delete service more -n shop");
    agent.eventually("it is deleted", || !world.answers(MORE));
    assert!(world.answers(CART));
    assert!(!agent.log().contains("WARN API server"), "{}", agent.log());

    // The server has events of its own.
    let events = |of: &str, reason: &str| -> Vec<String> {
        let all = server.kubectl(&format!("events --for {of}"));
        let ours = all.lines().filter(|event| event.contains(reason));
        ours.map(str::to_owned).collect()
    };
    let healthy = || events("node/node-a -n default", "ServiceProxyHealthy");
    agent.eventually("the event", || !healthy().is_empty());
    let healthy = healthy();
    let is_normal = healthy.iter().all(|event| event.contains("Normal"));
    assert!(is_normal && healthy.len() == 1, "{healthy:?}");
    assert_eq!(events("service/second -n shop", "NotServed"), [""; 0]);
}

fn an_outage_of_the_server_is_outlived(world: &World, server: &mut Server<'_>, agent: &Agent) {
    let mut open = world.connect(CART).expect("an answer");
    let said = || agent.log().matches("WARN API server").count();
    let before = said();
    server.0.kill();
    agent.eventually("it is logged", || said() > before);
    agent.eventually("it is reported", || agent.reports("cannot be followed"));
    assert_eq!(agent.health().0, 200, "the datapath is as it was");
    assert!(world.answers(CART));
    a_server_that_is_away_is_named(world, &server.kubeconfig());
    assert_eq!(open.echo("without a server"), "without a server");
    server.0.revive().expect("the server is back");
    server.apply(Service::new("more", "172.30.1.2"));
    server.kubectl("delete service cart -n shop");
    agent.eventually("what came", || world.answers(MORE));
    agent.eventually("what went", || !world.answers(CART));
    agent.eventually("it has ended", || !agent.reports("cannot be followed"));
    assert_eq!(open.echo("its service is gone"), "its service is gone");
}

/// Starts kube-proxy on the node of a world.
fn start_kube_proxy(world: &World, kubeconfig: &str) -> KubeProxy {
    let program = env::var("KUBE_PROXY").expect("the program; `cargo xtask test` names it");
    let (node, program, kubeconfig) = (world.node(), program.as_ref(), kubeconfig.as_ref());
    let started = KubeProxy::start(node, program, "nftables", None, kubeconfig);
    started.expect("kube-proxy")
}

fn wait_ends_with_kube_proxys_rules(world: &World, server: &Server<'_>) {
    let has_rules = || world.tool("nft", "list ruleset").contains("172.30.1.1");
    // The rules of an earlier kube-proxy prove nothing to `wait`.
    let earlier = start_kube_proxy(world, &server.kubeconfig());
    wait(LIMIT, "its rules", has_rules);
    drop(earlier);
    let mut command = Command::new(BINARY);
    let metrics = METRICS.to_string();
    let flags = ["wait", "--kube-proxy", "--kube-proxy-metrics", &metrics];
    let mut waiting = world.begin(command.args(flags).stdout(Stdio::null()));
    sleep(Duration::from_secs(3));
    let state = waiting.try_wait().expect("its state");
    assert_eq!(state, None, "kube-proxy does not run");
    let kube_proxy = start_kube_proxy(world, &server.kubeconfig());
    assert!(waiting.wait().expect("its end").success());
    assert!(has_rules());
    drop(kube_proxy);
    world.nft("flush ruleset\n");
}

fn dead_connections_are_replaced(world: &World, server: &Server<'_>, agent: &Agent) {
    let pid = format!("pid={},", agent.pid());
    let open = world.tool("ss", "-tnpH state established");
    let open = open.lines().filter(|line| line.contains(&pid));
    let own_port = |line: &str| {
        let own = line.split_whitespace().nth(2).expect("its own end");
        own.rsplit_once(':').expect("a port").1.to_owned()
    };
    let ports = open.map(own_port).collect::<Vec<_>>().join(",");
    // Without FIN or RST: as when the server loses power.
    world.nft(&format!(
        "table inet dead {{\n chain out {{ type filter hook output priority 0;\n\
         tcp sport {{ {ports} }} drop\n tcp dport {{ {ports} }} drop\n }}\n}}\n"
    ));
    server.apply(Service::new("late", "172.30.1.4"));
    let begun = Instant::now();
    agent.within(LIMIT, "the change", || world.lists("172.30.1.4"));
    let took = begun.elapsed();
    assert!(took > Duration::from_secs(5), "the connection was not dead");
    world.nft("delete table inet dead\n");
}
