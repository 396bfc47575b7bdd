// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An agent without an API server: /healthz says so, /livez reports only that its loop runs.

use std::{thread, time::Duration};

use crate::{
    dump::{TOKEN, a_dump_has_all_its_files_and_no_credentials},
    world::{CART, NODE_PORT, OF_V4, World},
};

#[test]
fn an_agent_that_starts_without_an_api_server_attaches_and_serves_what_the_maps_hold() {
    let world = World::serving();
    let first = world.start();
    assert!(world.answers(CART));
    assert!(first.stop().success());
    // As after a restart of the node's network: the interfaces are new and have no programs.
    world.replug(&world.client, OF_V4[1]);
    assert!(!world.answers(CART), "nobody has attached to it");
    let file = world.kubeconfig("https://127.0.0.1:9", TOKEN);
    let second = world.spawn_by(&[], &["--kubeconfig", &file]);
    second.eventually("it serves", || world.answers(CART));
    world.replug(&world.client, OF_V4[1]);
    // A time in which the agent applies a change.
    thread::sleep(Duration::from_millis(800));
    assert!(world.answers(CART), "also a pod that comes");
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
    assert!(world.answers(NODE_PORT));
    let _open = world.connect(CART).expect("served");
    a_dump_has_all_its_files_and_no_credentials(&world, second);
}
