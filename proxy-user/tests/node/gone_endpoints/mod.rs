// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Connections to an endpoint whose pod is gone end; connections to every other endpoint go on.

mod bed;
mod families;

use std::{thread, time::Duration};

use crate::{
    agent::{Agent, eventually},
    configured::replace,
    connection::Open,
    objects::{Service, node_object, pod_endpoint},
    past_the_stack::link,
    pods::Sleeping,
    world::World,
};

const TO: &str = "172.30.1.1:80";
/// Longer than a pod's link must be gone, and a walk through the tables of a test.
const SETTLED: Duration = Duration::from_secs(8);

/// A connection by packets, one translated at a pod's socket, and one of the node.
struct Connections([Open; 3]);

impl Connections {
    fn open(world: &World) -> Self {
        let all = [
            world.connect(TO),
            world.connect_at_socket(TO),
            world.connect_from_node(TO),
        ];
        Self(all.map(|open| open.expect("served")))
    }
    #[track_caller]
    fn go_on(&mut self) {
        for open in &mut self.0 {
            assert_eq!(open.echo("still there?"), "still there?");
        }
    }
}

/// Changes the service's endpoints: addresses, and whether they are ready. Waits until they are
/// applied.
fn change(world: &World, agent: &Agent, version: u64, endpoints: &[(&str, bool)]) {
    let endpoints = endpoints
        .iter()
        .map(|(address, ready)| pod_endpoint(address, "cart", [*ready, *ready, !ready]));
    let cart = Service::new("cart", "172.30.1.1").endpoints(endpoints.collect());
    world.write("cart.yaml", cart);
    world.write("node.yaml", node_object(Some(version)));
    agent.wait_for(version);
}

fn end_of(open: &mut Open) -> String {
    open.set_patience(Duration::from_secs(60));
    open.echo("still there?")
}

#[test]
fn connections_to_a_pod_that_is_gone_end() {
    // With another endpoint, and without any.
    for rest in [&[("10.40.1.21", true)][..], &[]] {
        let world = World::serving();
        let _process = Sleeping::in_client(&world);
        let agent = world.start(7);
        let Connections([mut by_packet, mut of_pod, mut of_node]) = Connections::open(&world);
        eventually("the pod is known", &agent, || link(&world).is_some());
        world.server().ip("link del eth0\n").expect("its link");
        change(&world, &agent, 8, rest);
        let end = end_of(&mut by_packet);
        assert!(end.contains("reset"), "{end}");
        for open in [&mut of_pod, &mut of_node] {
            let end = end_of(open);
            assert!(end.contains("abort"), "{end}: {}", agent.log());
        }
        agent.logs("connections to pods that are gone end");
        assert_eq!(world.flows().len(), 0);
    }
}

#[test]
fn connections_to_a_pod_that_left_its_service_or_is_not_ready_go_on() {
    let world = World::serving();
    let agent = world.start(7);
    let mut open = Connections::open(&world);
    eventually("the pod is known", &agent, || link(&world).is_some());
    change(&world, &agent, 8, &[("10.40.1.20", false)]);
    thread::sleep(SETTLED);
    open.go_on();
    // As by a change of the pod's labels.
    change(&world, &agent, 9, &[]);
    thread::sleep(SETTLED);
    open.go_on();
}

#[test]
fn connections_to_an_address_that_a_pod_has_by_another_link_are_not_touched() {
    let world = World::serving();
    let agent = world.start(7);
    let mut open = Connections::open(&world);
    eventually("the pod is known", &agent, || link(&world).is_some());
    change(&world, &agent, 8, &[]);
    world.replug_server();
    thread::sleep(SETTLED);
    open.go_on();
}

#[test]
fn connections_to_a_pod_that_a_slice_lists_are_not_touched_though_its_link_is_gone() {
    let world = World::serving();
    let agent = world.start(7);
    let open = Connections::open(&world);
    eventually("the pod is known", &agent, || link(&world).is_some());
    change(&world, &agent, 8, &[("10.40.1.20", false)]);
    world.server().ip("link del eth0\n").expect("its link");
    thread::sleep(SETTLED);
    assert_eq!(world.flows().len(), 1);
    assert!(!agent.log().contains("that are gone"), "{}", agent.log());
    drop(open);
}

#[test]
fn with_the_setting_keep_connections_to_a_pod_that_is_gone_stay() {
    let world = World::serving();
    let agent = world.start_configured(7, "portolan: {connectionsOfGoneEndpoints: keep}\n");
    let open = Connections::open(&world);
    eventually("the pod is known", &agent, || link(&world).is_some());
    world.server().ip("link del eth0\n").expect("its link");
    change(&world, &agent, 8, &[("10.40.1.21", true)]);
    thread::sleep(SETTLED);
    assert_eq!(world.flows().len(), 1);
    assert!(!agent.log().contains("that are gone"), "{}", agent.log());
    drop(open);
}

/// Longer than the walks through nearly empty tables rest.
const REST: Duration = Duration::from_secs(24);

/// Changes the setting, and waits until it is in force.
fn set(world: &World, agent: &Agent, text: &str) {
    let told = || {
        agent
            .log()
            .matches("connectionsOfGoneEndpoints, in force")
            .count()
    };
    let before = told();
    replace(
        world,
        &format!("portolan: {{connectionsOfGoneEndpoints: {text}}}\n"),
    );
    eventually("the setting is in force", agent, || told() > before);
}

#[test]
fn the_setting_changes_while_the_agent_runs() {
    let world = World::serving();
    let agent = world.start_configured(7, "portolan: {connectionsOfGoneEndpoints: reset}\n");
    let open = || world.connect(TO).expect("served");
    let known = || eventually("the pod is known", &agent, || link(&world).is_some());
    let leave = |version| {
        world.server().ip("link del eth0\n").expect("its link");
        change(&world, &agent, version, &[("10.40.1.21", true)]);
    };
    let mut first = open();
    known();
    leave(8);
    let end = end_of(&mut first);
    assert!(end.contains("reset"), "{end}");

    // From reset to keep: the address is no longer one to which connections end.
    set(&world, &agent, "keep");
    world.join_server();
    change(&world, &agent, 9, &[("10.40.1.20", true)]);
    let mut second = open();
    thread::sleep(REST);
    assert_eq!(second.echo("still there?"), "still there?");
    known();
    leave(10);
    thread::sleep(REST);
    assert_eq!(world.flows().len(), 1);
    assert_eq!(agent.log().matches("that are gone").count(), 1);

    // From keep to reset: what has gone meanwhile counts, too.
    set(&world, &agent, "reset");
    let end = end_of(&mut second);
    assert!(end.contains("reset"), "{end}: {}", agent.log());
    assert_eq!(world.flows().len(), 0);
}
