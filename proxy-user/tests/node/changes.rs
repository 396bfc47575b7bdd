// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Manifests, interfaces and addresses that change while the agent runs.

use std::{thread::sleep, time::Duration};

use crate::{
    agent::eventually,
    objects::{Service, node_object, service},
    repair,
    world::World,
};

/// A time in which the agent applies a change.
const FOLLOWED: Duration = Duration::from_millis(800);

#[test]
fn bad_manifests_are_logged_and_all_other_services_keep_working() {
    let world = World::serving();
    let agent = world.start(7);
    world.write(
        "cart.yaml",
        "apiVersion: v1\nkind: Service\nmetadata: {name: cart, na",
    );
    world.write(
        "deployment.yaml",
        "{apiVersion: apps/v1, kind: Deployment, metadata: {name: x}}",
    );
    let twin = Service::new("twin", "172.30.1.1").node_port(31000);
    world.write("twin.yaml", twin);
    world.write("more.yaml", service("more", "172.30.1.2"));
    sleep(FOLLOWED);
    assert!(
        world.connect("172.30.1.1:80").is_ok(),
        "the last good content holds"
    );
    assert!(
        world.connect("172.30.1.2:80").is_ok(),
        "a good file works beside bad ones"
    );
    let log = agent.log();
    for expected in [
        "cart.yaml, document 1, line 3: ",
        "its last good content stays in force, correct the file",
        "kind Deployment of apps/v1 is skipped",
        "Service shop/twin: cluster IP 172.30.1.1:80/TCP already belongs to Service shop/cart",
    ] {
        assert_eq!(log.matches(expected).count(), 1, "{expected}: {log}");
    }
    world.write("node.yaml", node_object(Some(8)));
    agent.wait_for(8);
    world.write("cart.yaml", service("cart", "172.30.1.3"));
    sleep(FOLLOWED);
    assert!(
        world.connect("172.30.1.3:80").is_ok(),
        "a corrected file takes effect"
    );
    assert!(
        world.connect("172.30.1.1:80").is_ok(),
        "and leaves the address to the other service"
    );
}

#[test]
fn new_node_addresses_and_new_pod_interfaces_are_served() {
    let world = World::serving();
    let _agent = world.start(7);
    assert!(world.connect("192.168.44.2:30001").is_err());
    world.add_uplink("192.168.44.2/24");
    sleep(FOLLOWED);
    assert!(
        world.connect("192.168.44.2:30001").is_ok(),
        "a new address serves node ports"
    );
    world.replug_client();
    sleep(FOLLOWED);
    assert!(
        world.connect("172.30.1.1:80").is_ok(),
        "a pod that came later is served"
    );
}

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
    assert!(world.connect("172.30.1.1:80").is_ok());
}
