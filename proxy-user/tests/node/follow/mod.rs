// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `portolan explain --follow` names the station that lost a real packet: each fault is set up, the
//! sentence is compared, and the fault is removed again.

mod firewalls;

use std::process::{Child, Command, Stdio};

use lab::node::netns::NetNs;
use serde_json::Value;

use crate::{explain::run, world::World};

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

/// Starts a process in the network namespace of a pod, and in the cgroup at which the socket hooks
/// are.
fn pause(world: &World, pod: &NetNs) -> Pause {
    let start = || {
        let mut command = Command::new("sleep");
        command.arg("3600").stdout(Stdio::null()).spawn()
    };
    let started = world.cgroup().inside(|| pod.enter(start));
    let child = started.expect("enter the cgroup").expect("enter the pod");
    Pause(child.expect("it starts"))
}

/// A node whose programs no agent repairs, with a service and two pods.
struct Node {
    _pods: [Pause; 2],
    world: World,
}

impl Node {
    fn build() -> Self {
        let world = World::serving();
        assert!(world.start_by_stack(7).stop().success());
        let pods = [world.client(), world.server()].map(|pod| pause(&world, pod));
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
