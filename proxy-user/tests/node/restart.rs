// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An agent that ends and starts again.

use std::fs;

use crate::{objects::service, world::World};

#[test]
fn a_connection_outlives_the_agent_which_then_writes_only_the_difference() {
    let world = World::serving();
    world.write("gone.yaml", service("gone", "172.30.1.2"));
    let first = world.start(7);
    let mut open = world.connect("172.30.1.1:80").expect("cart answers");
    assert!(world.connect("172.30.1.2:80").is_ok());
    assert_eq!(open.echo("before"), "before");

    assert!(first.stop().success(), "SIGTERM is a clean end");
    assert_eq!(open.echo("without an agent"), "without an agent");
    assert!(
        world.connect("172.30.1.1:80").is_ok(),
        "new ones work as well"
    );
    fs::remove_file(world.path("manifests/gone.yaml")).expect("removed");
    let second = world.start(7);
    second.logs("ready planned=1 written=WRITTEN");
    assert!(
        world.connect("172.30.1.2:80").is_err(),
        "what went meanwhile is gone"
    );
    assert_eq!(open.echo("at last"), "at last");
    assert!(!second.log().contains("WARN"), "{}", second.log());
}
