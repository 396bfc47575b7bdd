// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The nodes on which packets are followed, and the reports about them.

use lab::node::{netns::NetNs, process::Killed};
use serde_json::Value;

use crate::{
    commands::printed,
    connection::{serve, sleep_in},
    explain::{OUTSIDE, run},
    objects::{Service, endpoint, pod_endpoint},
    world::{CART, CLIENT, SERVER, World},
};

/// Services whose only endpoint is not ready, listens nowhere, or accepts nothing.
pub(super) const UNREADY: &str = "172.30.1.2:80";
pub(super) const DEAF: &str = "172.30.1.6:80";
pub(super) const FULL: &str = "172.30.1.7:80";
/// A service with an endpoint that serves, and one to which there is no route.
pub(super) const HALF: &str = "172.30.1.8:80";

/// A node whose programs no agent repairs, with services, two pods and a client outside.
pub(super) struct Node {
    _pods: [Killed; 2],
    _outside: NetNs,
    /// To the client and to the server.
    pub(super) interfaces: [String; 2],
    pub(super) world: World,
}

impl Node {
    /// Pods' connections are translated by the packet path, or at their sockets: then their
    /// processes are in the cgroup at which the hooks are.
    pub(super) fn build(by_socket: bool) -> Self {
        let world = World::serving();
        let unready = pod_endpoint("10.40.1.20", "pay-7f", [false; 3]);
        for service in [
            Service::new("unready", "172.30.1.2").endpoints(vec![unready]),
            Service::new("deaf", "172.30.1.6").target(8081),
            Service::new("full", "172.30.1.7").target(8082),
            Service::new("half", "172.30.1.8")
                .endpoints(["10.40.1.20", "10.40.1.99"].map(endpoint).into()),
        ] {
            world.publish(service);
        }
        let outside = world.pod(OUTSIDE);
        assert!(world.start_by_stack().stop().success());
        let start = |pod| match by_socket {
            true => world.cgroup.inside(|| sleep_in(pod)),
            false => Ok(sleep_in(pod)),
        };
        let node = Self {
            _pods: [&world.client, &world.server].map(|pod| start(pod).expect("its cgroup")),
            _outside: outside,
            interfaces: [world.interface_to(CLIENT), world.interface_to(SERVER)],
            world,
        };
        node.follow(CART).was_answered();
        node
    }

    /// Follows a packet of the client pod.
    pub(super) fn follow(&self, to: &str) -> Followed {
        follow(&self.world, CLIENT, to, "")
    }

    /// Runs lines of shell at the hosts that their first words name: node, client or server. `$in`
    /// and `$out` are the node's interfaces to the client and to the server. After the host, `chain
    /// FAMILY HOOK: RULES` makes a table `firewall` with one chain.
    pub(super) fn run(&self, lines: &str) {
        let (world, [to_client, to_server]) = (&self.world, &self.interfaces);
        for line in lines.lines() {
            let (host, command) = line.split_once(' ').expect("a host");
            let host = match host {
                "client" => &world.client,
                "server" => &world.server,
                _ => world.node(),
            };
            let command = match command.strip_prefix("chain ") {
                Some(chain) => {
                    let (hook, rules) = chain.split_once(": ").expect("rules");
                    let (family, hook) = hook.split_once(' ').expect("a family");
                    format!(
                        "echo \"table {family} firewall {{ chain filter {{ type filter hook {hook} priority 0; {rules}; }}; }}\" | nft -f -"
                    )
                }
                None => command.to_owned(),
            };
            let command = format!("in={to_client} out={to_server}; {command}");
            host.feed("sh", &["-ec", &command], "").expect("it runs");
        }
    }

    /// Sets up each fault of a table, which must be named, and removes it again. Behind `=` are
    /// words of the sentence, behind `+` and `-` the lines that make the fault and undo it.
    pub(super) fn names(&self, faults: &str) {
        for fault in faults.trim().split("\n\n") {
            let lines = |sign: &str| {
                let lines = fault.lines().filter_map(|line| line.strip_prefix(sign));
                lines.collect::<Vec<_>>().join("\n")
            };
            self.run(&lines("+ "));
            let said = self.follow(CART);
            self.run(&lines("- "));
            said.was_lost(&lines("= ").replace("$out", &self.interfaces[1]));
        }
    }
}

/// A node with two pods at a bridge, of which one serves.
pub(super) fn bridged() -> (World, [(Killed, NetNs); 2]) {
    let world = World::build();
    world.add_bridge("10.40.2.1/24");
    let pods = ["10", "20"].map(|last| {
        let (port, address) = (format!("port{last}"), format!("10.40.2.{last}/24"));
        let pod = world.bridged_pod(&port, &address, "10.40.2.1");
        (sleep_in(&pod), pod)
    });
    serve(&pods[1].1, "10.40.2.20:8080");
    let cart = Service::new("cart", "172.30.1.1").endpoints(vec![endpoint("10.40.2.20")]);
    world.publish(cart);
    assert!(world.start_by_stack().stop().success());
    (world, pods)
}

/// One report.
pub(super) struct Followed(pub(super) Value);

pub(super) fn follow(world: &World, from: &str, to: &str, flags: &str) -> Followed {
    let line = format!("--from {from} --to {to} --follow --output json {flags}");
    Followed(printed(&run(world, &line)))
}

impl Followed {
    fn sentence(&self) -> &str {
        let sentence = self.0["followed"]["sentence"].as_str();
        sentence.unwrap_or_else(|| panic!("{:#}", self.0))
    }

    #[track_caller]
    pub(super) fn was_answered(&self) {
        assert_eq!(self.0["followed"]["answered"], true, "{:#}", self.0);
    }

    #[track_caller]
    pub(super) fn was_lost(&self, words: &str) {
        eprintln!("{}", self.sentence());
        assert_eq!(self.0["followed"]["answered"], false, "{:#}", self.0);
        assert!(self.sentence().contains(words), "{words}: {:#}", self.0);
    }
}
