// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A process of the node answers at a service's cluster IP, as NodeLocal DNSCache does: packets and
//! sockets to the address go to that process while the node has it.

use std::{io, net::UdpSocket, sync::mpsc, thread, time::Duration};

use lab::node::netns::NetNs;

use crate::{
    agent::{Agent, eventually},
    attachments::CART,
    objects::{SERVICE_CIDR, questions, service},
    world::World,
};

const CLUSTER_IP: &str = "172.30.1.9";
const QUESTION: &str = "172.30.1.9:53";
/// A configuration that drops packets to cluster IPs without a service.
const DROPS: &str = "portolan: {unallocatedClusterIPs: drop}\n";

/// Answers every datagram with `name` until the returned sender is dropped.
fn answer(host: &NetNs, at: &str, name: &'static str) -> mpsc::Sender<()> {
    let socket = host.enter(|| UdpSocket::bind(at)).expect("the host");
    let socket = socket.unwrap_or_else(|error| panic!("{at}: {error}"));
    let patience = Some(Duration::from_millis(20));
    socket.set_read_timeout(patience).expect("a time-out");
    let (stop, stopped) = mpsc::channel::<()>();
    thread::spawn(move || {
        let mut buffer = [0; 64];
        while stopped.try_recv() != Err(mpsc::TryRecvError::Disconnected) {
            if let Ok((_, from)) = socket.recv_from(&mut buffer) {
                _ = socket.send_to(name.as_bytes(), from);
            }
        }
    });
    stop
}

/// Asks from a new socket; returns the name of the server that answers.
fn ask() -> io::Result<String> {
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    socket.connect(QUESTION)?;
    socket.set_read_timeout(Some(Duration::from_millis(500)))?;
    socket.send(b"who?")?;
    let mut buffer = [0; 64];
    let length = socket.recv(&mut buffer)?;
    Ok(String::from_utf8_lossy(&buffer[..length]).into_owned())
}

/// The names of the servers that answer a pod, packet by packet, and a process of the node, at its
/// socket.
fn answers(world: &World) -> [String; 2] {
    let pod = world.client().enter(ask).expect("the pod");
    let node = world.in_node_process(ask);
    [pod, node].map(|answer| answer.unwrap_or_else(|error| error.to_string()))
}

fn answered_by(who: &str, world: &World, agent: &Agent) {
    let what = format!("the {who} answers");
    eventually(&what, agent, || answers(world) == [who, who]);
}

#[test]
fn a_cluster_ip_on_a_node_interface_is_answered_by_the_node_process() {
    let world = World::build();
    let _pod = answer(world.server(), "10.40.1.20:8080", "pod");
    world.write("questions.yaml", questions());
    world.write("cart.yaml", service("cart", "172.30.1.1"));
    world.write("range.yaml", SERVICE_CIDR);
    let agent = world.start_configured(7, DROPS);
    answered_by("pod", &world, &agent);

    world.ip(&format!(
        "link add nodelocaldns type bridge\nlink set nodelocaldns up\naddress add {CLUSTER_IP}/32 dev nodelocaldns"
    ));
    let cache = answer(world.node(), QUESTION, "node");
    answered_by("node", &world, &agent);
    agent.says(&[
        "Service shop/questions",
        CLUSTER_IP,
        "an address of this node",
    ]);
    assert!(world.connect(CART).is_ok(), "others are served");
    assert_eq!(agent.health().0, 200);
    assert!(!agent.log().contains("WARN"), "{}", agent.log());

    // The DNS cache ends.
    drop(cache);
    world.ip("link del nodelocaldns");
    answered_by("pod", &world, &agent);
    agent.says(&["Service shop/questions", "served here again"]);
    let named = agent.log().matches("is an address of this node").count();
    assert_eq!(named, 1, "{}", agent.log());
    assert!(agent.stop().success());
}
