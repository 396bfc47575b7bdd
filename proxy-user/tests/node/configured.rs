// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An agent with a configuration file: it reads the file as kube-proxy does, and follows its
//! changes while connections go on.

use std::{fs, net::TcpStream, os::unix::fs::symlink, sync::atomic::AtomicBool, time::Duration};

use lab::node::{
    netns::NetNs,
    options::{HEALTH, METRICS},
};
use serde_json::Value as Json;

use crate::{
    agent::Agent,
    connection::{Open, beside, listen},
    objects::Service,
    world::{CART, NODE_PORT, World, at, complete},
};

const LOOPBACK_PORT: &str = "127.0.0.1:30001";
const HEALTH_CHECK: &str = "10.40.0.1:31700";
/// The paths of the server at [`METRICS`].
const OF_METRICS: &str = "/metrics, /configz and /warnings";
/// A change of the file takes effect within this time, even on a busy machine.
const SOON: Duration = Duration::from_secs(60);

fn configz(agent: &Agent) -> Json {
    let answer: Json = serde_json::from_str(&agent.metrics("/configz")).expect("JSON");
    answer["kubeproxy.config.k8s.io"].clone()
}

/// Whether a connection from this network namespace is accepted.
fn listens(from: &NetNs, to: &str) -> bool {
    let connect = || TcpStream::connect_timeout(&at(to), Duration::from_secs(1));
    from.enter(connect).expect("enter it").is_ok()
}

/// The number of the agent's open file descriptors.
fn descriptors(agent: &Agent) -> usize {
    let folder = format!("/proc/{}/fd", agent.pid());
    fs::read_dir(folder).expect("its descriptors").count()
}

/// Replaces the file by one with these settings and those of every agent here, as the kubelet
/// replaces a mounted ConfigMap: by another symbolic link.
pub(crate) fn replace(world: &World, settings: &str) {
    let folder = world.folder.path();
    let (new, link) = (folder.join("new-config"), folder.join("new-link"));
    let number = fs::read_dir(folder).expect("the folder").count();
    let data = folder.join(format!("data{number}.yaml"));
    fs::write(&new, complete(settings)).expect("a new file");
    fs::rename(new, &data).expect("in its place");
    symlink(data, &link).expect("a link");
    fs::rename(link, folder.join("config.yaml")).expect("in place of the file");
}

#[test]
fn a_changed_configuration_file_takes_effect_and_connections_go_on() {
    let world = World::serving();
    world.publish(Service::new("lane", "172.30.1.3").checked_at(31700));
    let agent = a_server_port_in_use_is_logged_and_retried_while_services_work(&world);
    let pid = agent.pid();
    let is_checked = || listens(&world.client, HEALTH_CHECK);
    agent.within(SOON, "its health is told", is_checked);
    let mut open = world.connect(CART).expect("served");
    assert_eq!(open.echo("first"), "first");
    assert!(world.answers(NODE_PORT));
    assert!(world.connect_from_node(LOOPBACK_PORT).is_ok());
    assert_eq!(configz(&agent)["mode"], "iptables");

    replace(&world, "nodePortAddresses: [192.0.2.0/24]\n");
    let range = || configz(&agent)["nodePortAddresses"][0].clone();
    agent.within(SOON, "it has changed", || range() == "192.0.2.0/24");
    agent.within(SOON, "its node port closes", || !world.answers(NODE_PORT));
    agent.within(SOON, "the health check port, too", || !is_checked());
    let nowhere = "nodePortAddresses: no address of this node is in 192.0.2.0/24, so IPv4 node ports are served nowhere";
    agent.says(&[nowhere]);
    assert!(agent.metrics("/warnings").contains("served nowhere"));
    let _late = world.host("late 192.0.2.7/24", "eth0");
    let limit = Duration::from_secs(5);
    agent.within(limit, "both are open at a new address", || {
        listens(world.node(), "192.0.2.7:31700") && world.answers("192.0.2.7:30001")
    });
    let is_warned = || agent.metrics("/warnings").contains("served nowhere");
    agent.within(SOON, "the warning is gone", || !is_warned());
    assert!(!is_checked());

    replace(&world, "iptables: {localhostNodePorts: false}\n");
    agent.within(
        SOON,
        "the node port is open, and on loopback closed",
        || world.answers(NODE_PORT) && world.connect_from_node(LOOPBACK_PORT).is_err(),
    );
    assert!(is_checked());
    assert!(!agent.log().contains("starts anew"), "{}", agent.log());
    assert_eq!(open.echo("second"), "second");

    let more = "{nodePortAddresses: [192.0.2.0/24], portolan: {logLevel: debug}}\n";
    replace(&world, more);
    agent.logs("portolan.logLevel, in force now");
    world.publish(Service::new("till", "172.30.1.2"));
    agent.logs("DEBUG synced");

    replace(&world, "nodePortAddresses: [192.0.2/24]\n");
    agent.logs("cannot be used: nodePortAddresses: \"192.0.2/24\" is not");
    assert_eq!(agent.health().0, 200, "{}", agent.log());
    assert_eq!(range(), "192.0.2.0/24");
    assert!(!world.answers(NODE_PORT), "it stays closed");

    let before = descriptors(&agent);
    let (client, cgroup) = (&world.client, &world.cgroup);
    // The client stays the same, so that it meets its own earlier connections.
    let connecting = |done: &AtomicBool| {
        let connected = cgroup.inside(|| Open::keep_connecting(client, CART, done));
        connected.expect("enter the cgroup")
    };
    let connected = beside(connecting, || start_anew_twice(&world, &agent, &mut open));
    assert!(connected > 10, "{connected}");
    assert_eq!(agent.pid(), pid, "the same process");
    agent.within(SOON, "none is left open", || descriptors(&agent) <= before);
    assert!(agent.stop().success());
    with_hard_fail_a_port_in_use_ends_the_agent(&world);
    json_logs_are_one_object_a_line(&world);
}

/// Pods' connections change from the sockets to the packet path and back.
fn start_anew_twice(world: &World, agent: &Agent, open: &mut Open) {
    for round in 1..=2 {
        let (answers, plane) = [(true, "host"), (false, "all")][round - 1];
        let settings = format!("answerPing: {answers}, socketBalancing: {plane}");
        replace(world, &format!("portolan: {{{settings}}}\n"));
        let begun = || agent.log().matches("starts anew").count();
        agent.within(SOON, "it starts anew", || begun() == round);
        // The old agent still answers until it has ended.
        agent.within(SOON, "it is in force", || {
            let answer = agent.get(METRICS, "/configz");
            answer.is_ok_and(|(_, text)| text.contains(&format!("\"answerPing\":{answers}")))
        });
        agent.wait_for(7);
        let ping = ["-n", "-c", "2", "-i", "0.2", "-W", "2", "172.30.1.1"];
        let answered = world.client.feed("ping", &ping, "").is_ok();
        assert_eq!(answered, answers, "{}", agent.log());
        assert_eq!(open.echo("third"), "third");
        assert!(world.answers(CART) && world.answers(NODE_PORT));
    }
}

fn a_server_port_in_use_is_logged_and_retried_while_services_work(world: &World) -> Agent {
    let node = world.node();
    let (health, metrics) = (listen(node, HEALTH), listen(node, METRICS));
    let agent = world.spawn(&["--config", &world.configure("bindAddress: 0.0.0.0\n")]);
    agent.eventually("services are served", || world.answers(CART));
    let log = agent.log();
    for (setting, address, paths) in [
        ("healthzBindAddress", HEALTH, "/healthz and /livez"),
        ("metricsBindAddress", METRICS, OF_METRICS),
    ] {
        let said = format!("{setting} {address}: {paths} cannot be served: Address already in use");
        assert_eq!(log.matches(&said).count(), 1, "{log}");
    }
    drop((health, metrics));
    agent.eventually("it answers", || agent.health().0 == 200);
    agent.within(SOON, "no warning is left", || {
        let answer = agent.get(METRICS, "/metrics");
        answer.is_ok_and(|(_, text)| text.contains("portolan_warnings 0\n"))
    });
    agent
}

fn with_hard_fail_a_port_in_use_ends_the_agent(world: &World) {
    let _taken = listen(world.node(), METRICS);
    let (is_well, said) = world.spawn(&["--bind-address-hard-fail"]).wait_for_end();
    assert!(!is_well);
    let named = format!("metricsBindAddress {METRICS}: {OF_METRICS} cannot be served");
    assert!(said.contains(&named), "{said}");
    assert!(said.contains("bindAddressHardFail is set"), "{said}");
}

fn json_logs_are_one_object_a_line(world: &World) {
    let text = "logging: {format: json}\nmode: nftables\nbindAddress: '::'\n";
    let agent = world.start_configured(text);
    let at = "[::1]:10249".parse().expect("an address");
    let (status, text) = agent.get(at, "/configz").expect("it listens by IPv6");
    let is_followed = status == 200 && text.contains("\"mode\":\"nftables\"");
    assert!(is_followed, "{text}");
    let (status, text) = agent.get(at, "/healthz").expect("it listens");
    assert_eq!((status, text.as_str()), (200, "ok"));
    fs::remove_file(world.path("config.yaml")).expect("the file");
    agent.logs("cannot read the configuration file");
    let log = agent.log();
    for line in log.lines() {
        let line: Json = serde_json::from_str(line).expect(line);
        for key in ["timestamp", "level", "target"] {
            assert!(line[key].is_string(), "{key}: {line}");
        }
        assert!(line["fields"]["message"].is_string(), "{line}");
    }
}
