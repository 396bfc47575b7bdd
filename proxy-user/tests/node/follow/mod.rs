// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `portolan explain --follow` names the station that lost a real packet: each fault is set up, the
//! sentence is compared, and the fault is removed again.

mod drops;
mod endpoints;
mod firewalls;
mod hosts;
mod programs;
mod services;

use std::{
    net::TcpListener,
    process::{Child, Command, Stdio},
    thread,
};

use lab::node::netns::NetNs;
use serde_json::Value;

use crate::{
    connection::echo,
    explain::run,
    objects::{Service, endpoint},
    world::World,
};

const CLIENT: &str = "10.40.1.10";
const CART: &str = "172.30.1.1:80";

/// A process in a pod, as every pod has one; it ends with this value.
struct Pause(Child);

impl Drop for Pause {
    fn drop(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

/// Starts a process in the network namespace of a pod.
fn pause(pod: &NetNs) -> Pause {
    let start = || {
        let mut command = Command::new("sleep");
        command.arg("3600").stdout(Stdio::null()).spawn()
    };
    let child = pod.enter(start).expect("enter the pod");
    Pause(child.expect("it starts"))
}

/// A node whose programs no agent repairs, with a service and two pods.
struct Node {
    _pods: [Pause; 2],
    world: World,
}

impl Node {
    /// Pods' connections are translated by the packet path.
    fn build() -> Self {
        Self::with(|_, pod| pause(pod))
    }

    /// Pods' connections are translated at their sockets: their processes are in the cgroup at
    /// which the hooks are.
    fn by_socket() -> Self {
        Self::with(|world, pod| {
            let started = world.cgroup().inside(|| pause(pod));
            started.expect("enter the cgroup")
        })
    }

    fn with(start: impl Fn(&World, &NetNs) -> Pause) -> Self {
        let world = World::serving();
        assert!(world.start_by_stack(7).stop().success());
        let pods = [world.client(), world.server()].map(|pod| start(&world, pod));
        let node = Self { _pods: pods, world };
        node.follow(CART).was_answered();
        node
    }

    /// Follows a packet of the client pod.
    fn follow(&self, to: &str) -> Followed {
        follow(&self.world, CLIENT, to, &[])
    }

    /// Sets up a fault that must be named by these words, and removes it again.
    #[track_caller]
    fn names(&self, words: &str, make: impl FnOnce(&World), undo: impl FnOnce(&World)) {
        make(&self.world);
        self.follow(CART).was_lost(words);
        undo(&self.world);
        self.follow(CART).was_answered();
    }
}

/// A node with two pods at a bridge, of which one serves.
struct Bridged {
    _pods: [(Pause, NetNs); 2],
    world: World,
}

fn bridged() -> Bridged {
    let world = World::build();
    world.ip("link add br0 type bridge\naddress add 10.40.2.1/24 dev br0\nlink set br0 up");
    let pods = ["10.40.2.10", "10.40.2.20"].map(|address| {
        let pod = NetNs::new("bridged").expect("run as root");
        let port = format!("port{}", address.rsplit('.').next().expect("a number"));
        world.ip(&format!(
            "link add {port} type veth peer name eth0 netns {}\nlink set {port} master br0 up",
            pod.path()
        ));
        let inside = format!(
            "link set lo up\naddress add {address}/24 dev eth0\nlink set eth0 up\nroute add default via 10.40.2.1\n"
        );
        pod.ip(&inside).expect("a pod");
        (pause(&pod), pod)
    });
    let listener = pods[1].1.enter(|| TcpListener::bind("10.40.2.20:8080"));
    let listener = listener.expect("enter the pod").expect("a listener");
    thread::spawn(move || listener.incoming().flatten().for_each(echo));
    let cart = Service::new("cart", "172.30.1.1").endpoints(vec![endpoint("10.40.2.20")]);
    world.write("cart.yaml", cart);
    assert!(world.start_by_stack(7).stop().success());
    Bridged { _pods: pods, world }
}

/// One report.
struct Followed(Value);

fn follow(world: &World, from: &str, to: &str, flags: &[&str]) -> Followed {
    let words = ["--from", from, "--to", to, "--follow", "--output", "json"];
    let output = run(world, &[&words, flags].concat());
    let said = String::from_utf8_lossy(&output.stderr);
    let report: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {output:?} {said}"));
    Followed(report)
}

impl Followed {
    fn sentence(&self) -> &str {
        let sentence = self.0["followed"]["sentence"].as_str();
        sentence.unwrap_or_else(|| panic!("{:#}", self.0))
    }

    #[track_caller]
    fn was_answered(&self) {
        assert_eq!(self.0["followed"]["answered"], true, "{:#}", self.0);
    }

    #[track_caller]
    fn was_lost(&self, words: &str) {
        eprintln!("{}", self.sentence());
        assert_eq!(self.0["followed"]["answered"], false, "{:#}", self.0);
        assert!(self.sentence().contains(words), "{words}: {:#}", self.0);
    }
}
