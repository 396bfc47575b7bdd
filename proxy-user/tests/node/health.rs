// SPDX-License-Identifier: Apache-2.0 OR MIT
//! /healthz reports what is not served; /livez reports only that the agent's loop runs.

use std::fs;

use datapath::maps::pins::generations;
use lab::node::kubeconfig;

use crate::{
    agent::eventually,
    attachments::CART,
    dump::{TOKEN, a_dump_has_all_its_files_and_no_credentials},
    objects::service,
    world::World,
};

/// More services than the smallest map can hold.
fn many() -> String {
    let services = (1..=60).map(|n| service(&format!("s{n:02}"), &format!("172.30.1.{n}")));
    services.collect::<Vec<_>>().join("---\n")
}

#[test]
fn a_service_refused_by_a_full_map_is_named_and_the_node_stays_healthy() {
    let world = World::build();
    let agent = world.start_configured(7, "portolan: {maps: {frontends: 64, memory: 1}}\n");
    world.write("many.yaml", many());
    agent.logs("is full");
    // The map holds the services that come first by name.
    let named =
        r#"{"object":"Service shop/s60","reason":"not published, the map frontends_v4 is full"#;
    // The log reports it before /healthz does.
    eventually("it is named", &agent, || agent.health().1.contains(named));
    let (status, body) = agent.health();
    assert_eq!(status, 200, "other services are served: {body}");
    assert!(agent.is_alive(), "a new agent would find the same");
    agent.logs("portolan.maps.memory allows 1 MiB");
    assert_eq!(generations(world.pins()).expect("pins").len(), 1);
    world.write("many.yaml", service("s01", "172.30.1.1"));
    eventually("there is room", &agent, || {
        agent.health().1.contains(r#""faultCount":0"#)
    });
}

#[test]
fn an_agent_that_starts_without_an_api_server_attaches_and_serves_what_the_maps_hold() {
    let world = World::serving();
    let first = world.start(7);
    assert!(world.connect(CART).is_ok());
    assert!(first.stop().success());
    // As after a restart of the node's network: the interfaces are new and have no programs.
    world.replug_client();
    assert!(world.connect(CART).is_err(), "nobody has attached to it");
    let file = world.path("kubeconfig");
    let nobody = kubeconfig::render("https://127.0.0.1:9", TOKEN);
    fs::write(&file, nobody).expect("a kubeconfig");
    let second = world.follow(&file);
    eventually("it serves", &second, || world.connect(CART).is_ok());
    world.replug_client();
    eventually("also a pod that comes", &second, || {
        world.connect(CART).is_ok()
    });
    second.logs("WARN API server");
    assert_eq!(second.metric("portolan_source_failing"), Some(1));
    second.says(&["WARN", "API server", "docs/runbooks.md#source-outage"]);
    let (status, body) = second.health();
    assert_eq!(status, 503, "{body}");
    assert!(
        body.contains("the lists of objects have not arrived"),
        "{body}"
    );
    assert!(second.is_alive());
    // A node port is served because the node's addresses are still stored.
    assert!(world.connect("10.40.0.1:30001").is_ok());
    let _open = world.connect(CART).expect("served");
    a_dump_has_all_its_files_and_no_credentials(&world, second);
}
