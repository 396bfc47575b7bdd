// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A node with routes and neighbours, and the programs that run on it.

use std::net::SocketAddr;

use lab::node::netns::NetNs;
use proxy_common::maps::interface;

use crate::{
    packets::{NODE_MAC, at},
    service::{Addresses, Service},
    world::{Context, Outcome, World},
};

/// The index of the interface on the outsiders' side.
pub(super) const OUTSIDE: u32 = 10;

/// The index of the interface to the pods.
pub(super) const PODS: u32 = 20;

/// A node with routes and neighbours, and the programs that run on it.
pub(super) struct Node {
    netns: NetNs,
    pub(super) world: World,
    pub(super) addresses: Addresses,
}

impl Node {
    pub(super) fn new(v6: bool) -> Self {
        let a = Addresses::of(v6);
        let mac = |mac: [u8; 6]| mac.map(|byte| format!("{byte:02x}")).join(":");
        let node_mac = mac(NODE_MAC);
        let pod_mac = mac([2, 0, 0, 0, 0, 9]);
        let (length, default) = if v6 { (128, "::/0") } else { (32, "0.0.0.0/0") };
        let netns = NetNs::new("node").expect("run as root");
        let mut script = String::from("link set lo up\n");
        for (name, index) in [("outside", OUTSIDE), ("pods", PODS)] {
            script += &format!(
                "link add {name} index {index} address {node_mac} type veth peer name {name}-peer\n\
                 link set {name} mtu 1400 up\nlink set {name}-peer up\n"
            );
        }
        netns.ip(&script).expect("interfaces");
        let family = if v6 { "ipv6" } else { "ipv4" };
        let forwarding = if v6 {
            "ipv6/conf/all/forwarding"
        } else {
            "ipv4/ip_forward"
        };
        netns.set(&[(forwarding, "1")]).expect(family);
        let (node, pod, backend, outsider) = (a.node, a.pod, a.backend, a.outsider);
        let nodad = if v6 { "nodad" } else { "" };
        netns
            .ip(&format!(
                "addr add {node}/{length} {nodad} dev outside\n\
                 route add {pod}/{length} dev pods\nroute add {backend}/{length} dev pods\n\
                 route add {outsider}/{length} dev outside\n\
                 neigh add {pod} lladdr {pod_mac} dev pods nud permanent\n\
                 neigh add {backend} lladdr {pod_mac} dev pods nud permanent\n\
                 neigh add {outsider} lladdr {pod_mac} dev outside nud permanent\n\
                 route add unreachable {default} metric 1\n"
            ))
            .expect("routes");
        let mut world = World::with(|options| options.redirects = true, &[Service::web(a)]);
        for index in [OUTSIDE, PODS] {
            world.set_interface(index, interface::REDIRECTS);
        }
        Self {
            netns,
            world,
            addresses: a,
        }
    }

    /// Removes the backend's route or neighbour.
    pub(super) fn remove(&self, what: &str) {
        let backend = self.addresses.backend;
        let line = format!("{what} del {backend} dev pods\n");
        self.netns.ip(&line).expect("removed");
    }

    /// Adds a routing rule for the address family.
    pub(super) fn add_rule(&self, rule: &str) {
        let family = if self.addresses.pod.is_ipv6() {
            "-6"
        } else {
            "-4"
        };
        let words = [family, "rule", "add"].into_iter().chain(rule.split(' '));
        let words: Vec<_> = words.collect();
        self.netns.feed("ip", &words, "").expect("a rule");
    }

    /// Runs iproute2 commands, one a line.
    pub(super) fn ip(&self, batch: &str) {
        self.netns.ip(batch).expect("the node's routes");
    }

    /// Sets kernel parameters below /proc/sys/net.
    pub(super) fn set(&self, parameters: &[(&str, &str)]) {
        self.netns.set(parameters).expect("the node's parameters");
    }

    pub(super) fn service(&self) -> SocketAddr {
        at(self.addresses.cluster_ip, 80)
    }

    pub(super) fn ingress_by(&self, packet: &[u8], interface: u32, segment: u32) -> Outcome {
        let context = Context {
            interface,
            segment,
            ..Context::default()
        };
        let run = || self.world.ingress_by(packet, context);
        self.netns.enter(run).expect("enter the node")
    }
    pub(super) fn egress(&self, packet: &[u8], interface: u32) -> Outcome {
        let context = Context {
            interface,
            ..Context::default()
        };
        let run = || self.world.egress_by(packet, context);
        self.netns.enter(run).expect("enter the node")
    }
    pub(super) fn ingress(&self, packet: &[u8], interface: u32) -> Outcome {
        self.ingress_by(packet, interface, 0)
    }
}
