// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Interfaces and addresses that come while the agent runs.

use std::{thread::sleep, time::Duration};

use crate::{agent::eventually, attachments::CART, repair, world::World};

/// A time in which the agent applies a change.
const FOLLOWED: Duration = Duration::from_millis(800);

/// kube-proxy's mode ipvs leaves such a node: every cluster IP is an address of an interface.
#[test]
fn a_node_with_too_many_addresses_logs_it_and_serves_cluster_ips() {
    let world = World::serving();
    let mut batch = String::from("link add many type veth peer name few\nlink set many up\n");
    for number in 0..1100 {
        let (high, low) = (number / 250, number % 250);
        batch += &format!("address add 10.77.{high}.{low}/32 dev many\n");
    }
    world.ip(&batch);
    let agent = world.spawn(&[]);
    agent.logs("addresses could not be stored");
    eventually("its settings are stored", &agent, || {
        repair::are_complete(&world)
    });
    assert!(world.connect(CART).is_ok());
}

#[test]
fn addresses_and_interfaces_that_come_are_served() {
    let world = World::serving();
    let _agent = world.start(7);
    assert!(world.connect("192.168.44.2:30001").is_err());
    let _late = world.host("late 192.168.44.2/24", "eth0");
    sleep(FOLLOWED);
    assert!(
        world.connect("192.168.44.2:30001").is_ok(),
        "a new address serves node ports"
    );
    world.replug_client();
    sleep(FOLLOWED);
    assert!(
        world.connect(CART).is_ok(),
        "a pod that came later is served"
    );
}
