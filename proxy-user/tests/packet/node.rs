// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A node in a network namespace, with an interface to clients outside and one to pods, for
//! programs that look up routes and neighbours.

use std::net::SocketAddr;

use datapath::{Options, maps::family::Family};
use lab::node::netns::NetNs;
use linux::now;
use proxy_common::{FlowKind, V4, V6, flow::Offload};

use crate::{
    frames::text,
    packets::NODE_MAC,
    service::{Addresses, Service},
    world::{Context, Outcome, World},
};

/// The index of the interface to the clients outside; its address is the frames' [`NODE_MAC`].
pub(crate) const OUTSIDE: u32 = 10;
/// The index of the interface to the pods, and its own address.
pub(crate) const INSIDE: u32 = 20;
pub(crate) const INSIDE_MAC: [u8; 6] = [2, 0, 0, 0, 0, 3];
/// The address of the next hop to the clients outside, and that to the pods.
pub(crate) const OUTSIDERS_MAC: [u8; 6] = [2, 0, 0, 0, 0, 8];
pub(crate) const PODS_MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];

pub(crate) struct Node {
    network: NetNs,
    pub(crate) world: World,
    pub(crate) addresses: Addresses,
}

impl Node {
    /// A node with [`Service::web`] and changed options; both interfaces get these bits.
    pub(crate) fn new(a: Addresses, change: impl FnOnce(&mut Options), bits: u32) -> Self {
        let network = NetNs::new("node").expect("run as root");
        let (length, nodad, any) = match a.is_v6() {
            true => (128, "nodad", "::/0"),
            false => (32, "", "0.0.0.0/0"),
        };
        let mut batch = format!("link set lo up\nroute add unreachable {any} metric 1\n");
        let outside = ("outside", OUTSIDE, NODE_MAC);
        for (name, index, mac) in [outside, ("inside", INSIDE, INSIDE_MAC)] {
            let mac = text(mac);
            batch += &format!(
                "link add {name} index {index} address {mac} type veth peer name {name}-peer\n\
                 link set {name} mtu 1400 up\nlink set {name}-peer up\n"
            );
        }
        batch += &format!("addr add {}/{length} {nodad} dev outside\n", a.node);
        for (host, name, mac) in [
            (a.outsider, "outside", OUTSIDERS_MAC),
            (a.pod, "inside", PODS_MAC),
            (a.backend, "inside", PODS_MAC),
        ] {
            let mac = text(mac);
            batch += &format!(
                "route add {host}/{length} dev {name}\n\
                 neigh add {host} lladdr {mac} dev {name} nud permanent\n"
            );
        }
        let world = World::with(change, &[Service::web(a)]);
        for index in [OUTSIDE, INSIDE] {
            world.set_interface(index, bits);
        }
        let node = Self {
            network,
            world,
            addresses: a,
        };
        node.set(&["ipv6/conf/all/forwarding", "ipv4/ip_forward"].map(|name| (name, "1")));
        node.ip(&batch);
        node
    }
    /// Runs iproute2 commands, one a line, in which `BACKEND` is the backend's address.
    pub(crate) fn ip(&self, batch: &str) {
        let batch = batch.replace("BACKEND", &self.addresses.backend.to_string());
        self.network.ip(&batch).expect("the node's routes");
    }
    /// Adds a routing rule for the address family.
    pub(crate) fn add_rule(&self, rule: &str) {
        let family = if self.addresses.is_v6() { "-6" } else { "-4" };
        let rule: Vec<_> = rule.split(' ').collect();
        let words = [&[family, "rule", "add"][..], &rule].concat();
        self.network.feed("ip", &words, "").expect("a rule");
    }
    /// Sets kernel parameters below /proc/sys/net.
    pub(crate) fn set(&self, parameters: &[(&str, &str)]) {
        self.network.set(parameters).expect("the node's parameters");
    }

    /// The client in a pod.
    pub(crate) fn client(&self) -> SocketAddr {
        self.addresses.client()
    }
    pub(crate) fn backend(&self) -> SocketAddr {
        self.addresses.endpoint()
    }
    pub(crate) fn service(&self) -> SocketAddr {
        self.addresses.service()
    }

    /// The packet as it arrives at an interface: a frame to the node has that interface's address.
    pub(crate) fn framed(packet: &[u8], interface: u32) -> Vec<u8> {
        let mut packet = packet.to_vec();
        if interface == INSIDE && packet[..6] == NODE_MAC {
            packet[..6].copy_from_slice(&INSIDE_MAC);
        }
        packet
    }
    pub(crate) fn ingress(&self, packet: &[u8], interface: u32) -> Outcome {
        self.ingress_by(packet, interface, 0)
    }
    /// Runs ingress on a packet that will be cut into segments with this payload.
    pub(crate) fn ingress_by(&self, packet: &[u8], interface: u32, segment: u32) -> Outcome {
        let packet = Self::framed(packet, interface);
        let context = Context {
            interface,
            segment,
            ..Context::default()
        };
        self.enter(|| self.world.ingress_by(&packet, context))
    }
    pub(crate) fn egress(&self, packet: &[u8], mark: u32, interface: u32) -> Outcome {
        let context = Context {
            interface,
            mark,
            came_by: OUTSIDE,
            ..Context::default()
        };
        self.enter(|| self.world.egress_by(packet, context))
    }
    /// Records in every entry of a kind, as egress does, that a packet left by this interface so
    /// many nanoseconds ago; a reply came in by [`INSIDE`]. Test runs cannot show the tag by which
    /// egress knows such packets; real traffic makes records in `node::past_the_stack`.
    pub(crate) fn record(&self, kind: FlowKind, interface: u32, age: u64) {
        let record = Offload::new(interface, now() - age);
        self.record_in::<V4>(kind, record);
        self.record_in::<V6>(kind, record);
    }
    fn record_in<A: Family>(&self, kind: FlowKind, record: Offload) {
        self.world.change_flows::<A>(false, |entry| {
            if entry.kind == kind {
                entry.offload = record;
                entry.came_by = INSIDE;
            }
        });
    }
    pub(crate) fn enter<T>(&self, work: impl FnOnce() -> T) -> T {
        self.network.enter(work).expect("enter the node")
    }
}
