// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The node of the faults: two pods, a client outside, and a service for each fault. Its programs
//! serve without an agent, so that no fault is repaired.

use std::{net::TcpStream, process::Command, time::Duration};

use lab::node::netns::NetNs;

use crate::{
    explain::{OUTSIDE, outside, serve_also},
    objects::{Service, endpoint, pod_endpoint},
    world::{BINARY, World, at},
};

/// How long to wait for an answer.
const PATIENCE: Duration = Duration::from_millis(1500);

pub(super) struct Scene {
    pub(super) world: World,
    pub(super) outside: NetNs,
    /// The interfaces to the client, the server and the client outside, each with its name on the
    /// page.
    interfaces: [(String, &'static str); 3],
}

impl Scene {
    pub(super) fn build() -> Self {
        let world = World::serving();
        let outside = outside(&world);
        serve_also(&world, "10.40.1.21");
        for service in [
            pay(false),
            sticky(&["10.40.1.21"]),
            deaf(8081),
            login("node-b"),
            ranged("192.0.2.0/24"),
        ] {
            world.write(&service.file(), service);
        }
        assert!(world.start_by_stack(7).stop().success());
        let interfaces = [
            (world.client_interface(), "veth10"),
            (world.server_interface(), "veth20"),
            (world.interface_to(OUTSIDE), "eth0"),
        ];
        Self {
            world,
            outside,
            interfaces,
        }
    }

    /// Replaces a service through an agent that then ends.
    pub(super) fn replace(&self, service: Service) {
        self.world.write(&service.file(), service);
        assert!(self.world.start_by_stack(7).stop().success());
    }

    /// The output of a command of the page, with the page's names of interfaces.
    pub(super) fn run(&self, words: &[&str]) -> String {
        let mut command = Command::new(BINARY);
        command.args(words.iter().map(|word| self.interface(word)));
        command.arg("--pin-dir").arg(self.world.pins());
        if words.contains(&"explain") {
            command.arg("--manifests").arg(self.world.manifests());
        }
        let output = self.world.output(&mut command);
        let text = String::from_utf8(output.stdout).expect("text");
        assert!(
            !text.is_empty(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        let of_page = |word: &str| {
            let named = self.interfaces.iter().find(|(own, _)| own == word);
            named.map_or_else(|| word.to_owned(), |(_, page)| (*page).to_owned())
        };
        let mut named = String::new();
        for part in text.split_inclusive(|letter: char| !letter.is_alphanumeric()) {
            let word = part.trim_end_matches(|letter: char| !letter.is_alphanumeric());
            named += &of_page(word);
            named += &part[word.len()..];
        }
        named
    }

    /// The node's own name of an interface that the page mentions.
    pub(super) fn interface<'a>(&'a self, page: &'a str) -> &'a str {
        let found = self.interfaces.iter().find(|(_, name)| *name == page);
        found.map_or(page, |(own, _)| own)
    }

    /// Whether the client pod can connect to this address.
    pub(super) fn pod_reaches(&self, to: &str) -> bool {
        reaches(self.world.client(), to)
    }

    /// Whether the client outside can connect to this address.
    pub(super) fn outside_reaches(&self, to: &str) -> bool {
        reaches(&self.outside, to)
    }

    /// Makes the node's route to the client outside use this interface.
    pub(super) fn route_outside_by(&self, page: &str) {
        let interface = self.interface(page);
        self.world
            .ip(&format!("route change {OUTSIDE}/32 dev {interface}"));
    }
}

fn reaches(host: &NetNs, to: &str) -> bool {
    let connected = host.enter(|| TcpStream::connect_timeout(&at(to), PATIENCE));
    connected.expect("enter the host").is_ok()
}

/// A service with session affinity and endpoints with these addresses.
pub(super) fn sticky(addresses: &[&str]) -> Service {
    let endpoints = addresses.iter().map(|address| endpoint(address));
    Service::new("sticky", "172.30.1.3")
        .sticky()
        .endpoints(endpoints.collect())
}

/// A service whose only pod is ready or not.
pub(super) fn pay(ready: bool) -> Service {
    let pod = pod_endpoint("10.40.1.20", "pay-7f", [ready, ready, false]);
    Service::new("pay", "172.30.1.2").endpoints(vec![pod])
}

/// A service with this targetPort.
pub(super) fn deaf(port: u16) -> Service {
    Service::new("deaf", "172.30.1.4").target(port)
}

/// A service with externalTrafficPolicy Local, whose only pod is on `node`.
pub(super) fn login(node: &str) -> Service {
    Service::new("login", "172.30.1.5").local().on(node)
}

/// A service whose load balancer address is open only to these addresses.
pub(super) fn ranged(range: &str) -> Service {
    Service::new("ranged", "172.30.1.6")
        .balanced("203.0.113.6")
        .only_for(&[range])
}
