// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Addresses of the node: a process answers at a service's cluster IP, as NodeLocal DNSCache does,
//! while the node has the address; and a node with more addresses than portolan stores.

use std::io::ErrorKind;

use crate::{
    connection::{answer_at, asking, serve},
    objects::{SERVICE_CIDR, questions},
    repair,
    world::{CART, World},
};

#[test]
fn a_cluster_ip_on_a_node_interface_is_answered_by_the_node_process() {
    let world = World::serving();
    world.write("range.yaml", SERVICE_CIDR);
    world.publish(questions());
    // Packets to cluster IPs without a service are dropped.
    let agent = world.start_configured("portolan: {unallocatedClusterIPs: drop}\n");
    // By packets, and at a socket.
    let connect = || [world.connect(CART), world.connect_from_node(CART)];
    assert!(connect().iter().all(Result::is_ok));
    world.ip("link add nodelocaldns type bridge
link set nodelocaldns up
address add 172.30.1.9/32 dev nodelocaldns
address add 172.30.1.1/32 dev nodelocaldns");
    // Nobody listens there yet.
    let is_refused = |error: &std::io::Error| error.kind() == ErrorKind::ConnectionRefused;
    agent.eventually("the node refuses", || {
        let made = connect();
        made.iter().all(|made| made.as_ref().is_err_and(is_refused))
    });
    serve(world.node(), CART);
    assert!(connect().iter().all(Result::is_ok));
    // The pod answers no datagram.
    answer_at(world.node(), "172.30.1.9:53");
    agent.eventually("the node's process answers", || {
        let of_node = world.in_node_process(|| asking(world.node()));
        let mut both = [asking(&world.client), of_node].into_iter();
        both.all(|one| one.send(b"?").is_ok() && one.recv(&mut [0]).is_ok())
    });
    let said = "Service shop/cart: its cluster IP 172.30.1.1 is an address of this node";
    agent.says(&[said]);
    assert_eq!(agent.health().0, 200);
    assert!(!agent.log().contains("WARN"), "{}", agent.log());

    // The DNS cache ends.
    world.ip("link del nodelocaldns");
    agent.says(&["Service shop/cart", "served here again"]);
    agent.eventually("the pod answers", || connect().iter().all(Result::is_ok));
    assert_eq!(agent.log().matches(said).count(), 1, "{}", agent.log());
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
    agent.eventually("its settings are stored", || repair::are_complete(&world));
    assert!(world.answers(CART));
}
