// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The agent as a client of a real API server: objects made there are served, and nothing is lost
//! while the server or the agent is away.

use std::time::Duration;

use lab::{bpf, node::foreign::ChainPosition};
use nix::sys::signal::Signal;
use proxy_common::Counter;

use crate::{
    agent::{eventually, within},
    objects::service,
    server::prepare,
    world::World,
};

pub(crate) const CART: &str = "172.30.1.1:80";
const MORE: &str = "172.30.1.2:80";

#[test]
fn objects_of_the_api_server_are_served_and_their_changes_followed() {
    let world = World::build();
    let server = prepare(&world);
    let agent = world.follow(&server.kubeconfig());
    let answers = |to: &str| world.connect(to).is_ok();
    eventually("the first service", &agent, || answers(CART));
    server.apply(service("more", "172.30.1.2"));
    eventually("a new service", &agent, || answers(MORE));
    assert!(world.connect("10.40.0.1:30002").is_ok(), "by its node port");
    // This label gives the service to another proxy; without the label, portolan serves it again.
    let label = "label service more -n shop service.kubernetes.io/service-proxy-name";
    server.kubectl(&format!("{label}=other"));
    eventually("it is another's", &agent, || !answers(MORE));
    server.kubectl(&format!("{label}-"));
    eventually("it is ours again", &agent, || answers(MORE));
    server.kubectl("delete service more -n shop");
    eventually("it is deleted", &agent, || !answers(MORE));
    assert!(answers(CART));
    assert!(!agent.log().contains("WARN API server"), "{}", agent.log());
}

#[test]
fn services_are_served_during_an_api_outage_and_updated_after_it() {
    let world = World::build();
    let mut server = prepare(&world);
    let agent = world.follow(&server.kubeconfig());
    let answers = |to: &str| world.connect(to).is_ok();
    eventually("the first service", &agent, || answers(CART));
    let mut open = world.connect(CART).expect("an answer");
    server.kill();
    eventually("it is reported", &agent, || {
        agent.log().contains("WARN API server") && agent.health().1.contains("cannot be followed")
    });
    assert_eq!(agent.health().0, 200, "the datapath is as it was");
    assert!(answers(CART));
    assert_eq!(open.echo("without a server"), "without a server");
    server.revive();
    server.apply(service("more", "172.30.1.2"));
    server.kubectl("delete service cart -n shop");
    eventually("what came", &agent, || answers(MORE));
    eventually("what went", &agent, || !answers(CART));
    eventually("the fault has ended", &agent, || {
        !agent.health().1.contains("cannot be followed")
    });
    assert_eq!(open.echo("its service is gone"), "its service is gone");
}

#[test]
fn services_deleted_in_a_compacted_history_are_no_longer_served() {
    let world = World::build();
    let mut server = prepare(&world);
    server.apply(service("more", "172.30.1.2"));
    let agent = world.follow(&server.kubeconfig());
    let answers = |to: &str| world.connect(to).is_ok();
    eventually("both services", &agent, || answers(CART) && answers(MORE));
    agent.signal(Signal::SIGSTOP);
    server.kubectl("delete service more -n shop");
    server.kill();
    server.revive();
    for number in 3..6 {
        let address = format!("172.30.1.{number}");
        server.apply(service(&format!("new-{number}"), &address));
    }
    server.compact();
    agent.signal(Signal::SIGCONT);
    eventually("what came", &agent, || answers("172.30.1.5:80"));
    eventually("what went", &agent, || !answers(MORE));
    assert!(answers(CART));
}

#[test]
fn an_agent_that_was_killed_comes_back_without_a_lost_packet() {
    let world = World::build();
    let mut server = prepare(&world);
    server.apply(service("more", "172.30.1.2"));
    let kubeconfig = server.kubeconfig();
    let first = world.follow(&kubeconfig);
    let answers = |to: &str| world.connect(to).is_ok();
    eventually("both services", &first, || answers(CART) && answers(MORE));
    // The end of the agent would detach programs that are not pinned yet.
    eventually("it is ready", &first, || first.health().0 == 200);
    let mut open = world.connect(MORE).expect("an answer");
    first.signal(Signal::SIGKILL);
    drop(first);
    assert_eq!(open.echo("without an agent"), "without an agent");
    assert!(answers(CART) && answers(MORE), "new connections as well");
    server.kubectl("delete service more -n shop");
    server.apply(service("new", "172.30.1.3"));

    // The next agent starts without a server: it must remove no service before it has all lists.
    server.kill();
    let second = world.follow(&kubeconfig);
    second.logs("WARN API server");
    assert_eq!(second.health().0, 503, "it does not know what to serve");
    assert!(answers(CART) && answers(MORE));
    assert_eq!(open.echo("an agent, no server"), "an agent, no server");
    server.revive();
    eventually("what came", &second, || answers("172.30.1.3:80"));
    eventually("what went", &second, || !answers(MORE));
    eventually("it is ready", &second, || second.health().0 == 200);
    assert!(answers(CART));
    assert_eq!(open.echo("at last"), "at last");
}

#[test]
fn in_mode_nftables_packets_to_unallocated_cluster_ips_are_dropped() {
    let world = World::build();
    let server = prepare(&world);
    let flags = [
        "--kubeconfig",
        &server.kubeconfig(),
        "--proxy-mode",
        "nftables",
    ];
    let agent = world.spawn_by(&[], &flags);
    eventually("the first service", &agent, || world.connect(CART).is_ok());
    let dropped = || world.count(Counter::DroppedUnallocated);
    assert_eq!(dropped(), 0);
    assert!(world.connect("172.30.200.200:80").is_err());
    assert!(dropped() > 0, "{}", agent.log());
}

#[test]
fn a_service_whose_external_ip_is_taken_gets_a_warning_event() {
    let world = World::build();
    let server = prepare(&world);
    for name in ["first", "second"] {
        server.apply(format!(
            "{{apiVersion: v1, kind: Service, metadata: {{name: {name}, namespace: shop}}, spec: {{externalIPs: [198.51.100.7], ports: [{{port: 80}}]}}}}"
        ));
    }
    let agent = world.follow(&server.kubeconfig());
    let events = || server.kubectl("events -n shop --for service/second");
    // A node waits up to 30 s, in which another could write it.
    let limit = Duration::from_secs(60);
    within(limit, "the event", &agent, || {
        events().contains("198.51.100.7")
    });
    let events = events();
    // The server sends events of its own too.
    let ours: Vec<_> = events
        .lines()
        .filter(|event| event.contains("NotServed"))
        .collect();
    assert!(
        ours.len() == 1 && ours[0].contains("Warning"),
        "one event: {events}"
    );
    let others = server.kubectl("events -n shop --for service/first");
    assert!(!others.contains("NotServed"), "{others}");
}

#[test]
fn a_node_whose_agent_serves_gets_a_normal_event() {
    let world = World::build();
    let server = prepare(&world);
    let agent = world.follow(&server.kubeconfig());
    let events = || server.kubectl("events -n default --for node/node-a");
    eventually("the event", &agent, || {
        events().contains("ServiceProxyHealthy")
    });
    let events = events();
    let is_ours = |line: &&str| line.contains("Normal") && line.contains("serves 2 services");
    assert_eq!(events.lines().filter(is_ours).count(), 1, "{events}");
}

#[test]
fn a_node_gets_an_event_if_a_foreign_program_runs_before_portolans() {
    let world = World::build();
    let server = prepare(&world);
    let interface = world.client_interface();
    let agent = world.follow(&server.kubeconfig());
    eventually("the first service", &agent, || world.connect(CART).is_ok());
    // The agent moves its own program before this one.
    let moved = world.foreign(&interface, true, ChainPosition::First);
    agent.logs("had another program before it");
    drop(moved);
    let before = world.foreign(&interface, true, ChainPosition::First);
    let events = || server.kubectl("events -n default --for node/node-a");
    eventually("the event", &agent, || {
        events().contains("ProgramsNotFirst")
    });
    let said = format!("egress of {interface}");
    let events = events();
    assert!(
        events.contains("Warning") && events.contains(&said) && events.contains(bpf::NAME),
        "{events}"
    );
    drop(before);
}
