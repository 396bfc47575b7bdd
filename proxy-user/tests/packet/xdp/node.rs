// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A node with two uplinks, a client behind one and a backend behind the other, and the programs
//! that run on it.

use std::net::SocketAddr;

use datapath::XdpMode;
use lab::node::netns::NetNs;
use proxy_common::{
    Counter, Protocol,
    traffic::Traffic,
    xdp::{Abilities, Uplink},
};

use crate::{
    packets::{NODE_MAC, Tcp, at, internet_sum, seen, tcp, udp},
    service::{Addresses, Service},
    world::{Context, NEXT, Outcome, World},
};

/// The actions of XDP.
pub(super) const PASS: u32 = 2;
pub(super) const TX: u32 = 3;
pub(super) const REDIRECT: u32 = 4;

/// The index of the uplink to the clients.
pub(super) const OUTSIDE: u32 = 10;
/// The index of the uplink to the backend.
pub(super) const INSIDE: u32 = 20;

pub(super) const CLIENT_MAC: [u8; 6] = [2, 0, 0, 0, 0, 8];
pub(super) const BACKEND_MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];
pub(super) const INSIDE_MAC: [u8; 6] = [2, 0, 0, 0, 0, 3];

/// A packet that XDP has forwarded.
#[derive(Debug)]
pub(super) struct Taken {
    pub(super) verdict: u32,
    pub(super) packet: Vec<u8>,
    pub(super) counter: Counter,
}

/// The node of these tests.
pub(super) struct Node {
    netns: NetNs,
    pub(super) world: World,
    pub(super) addresses: Addresses,
    udp: bool,
}

fn mac(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

/// The same packet with another hop limit.
pub(super) fn with_hops(mut packet: Vec<u8>, hops: u8) -> Vec<u8> {
    if packet[12..14] == [8, 0] {
        packet[22] = hops;
        packet[24..26].fill(0);
        let sum = internet_sum(&[&packet[14..34]]);
        packet[24..26].copy_from_slice(&sum.to_be_bytes());
    } else {
        packet[21] = hops;
    }
    packet
}

impl Node {
    pub(super) fn new(v6: bool, udp: bool) -> Self {
        let a = Addresses::of(v6);
        let length = if v6 { 128 } else { 32 };
        let nodad = if v6 { "nodad" } else { "" };
        let netns = NetNs::new("node").expect("run as root");
        let mut script = String::from("link set lo up\n");
        for (name, index, own) in [
            ("outside", OUTSIDE, NODE_MAC),
            ("inside", INSIDE, INSIDE_MAC),
        ] {
            script += &format!(
                "link add {name} index {index} address {} type veth peer name {name}-peer\n\
                 link set {name} mtu 1400 up\nlink set {name}-peer up\n",
                mac(own)
            );
        }
        netns.ip(&script).expect("interfaces");
        let forwarding = ["ipv6/conf/all/forwarding", "ipv4/ip_forward"];
        let forwarding = forwarding.map(|name| (name, "1"));
        netns.set(&forwarding).expect("forwarding");
        let (node, backend, outsider) = (a.node, a.backend, a.outsider);
        netns
            .ip(&format!(
                "addr add {node}/{length} {nodad} dev outside\n\
                 route add {backend}/{length} dev inside\nroute add {outsider}/{length} dev outside\n\
                 neigh add {backend} lladdr {} dev inside nud permanent\n\
                 neigh add {outsider} lladdr {} dev outside nud permanent\n",
                mac(BACKEND_MAC),
                mac(CLIENT_MAC)
            ))
            .expect("routes");
        let mut service = Service::web(a);
        if udp {
            service.protocol = Protocol::UDP;
        }
        let options = |options: &mut datapath::Options| {
            options.xdp = Some(XdpMode::Native);
        };
        let mut world = World::with(options, &[service]);
        for (index, own) in [(OUTSIDE, NODE_MAC), (INSIDE, INSIDE_MAC)] {
            world.set_interface(index, 0);
            world.set_uplink(index, Uplink::new(own, Abilities::ALL));
        }
        world.change_routes();
        Self {
            netns,
            world,
            addresses: a,
            udp,
        }
    }

    pub(super) fn client(&self) -> SocketAddr {
        at(self.addresses.outsider, 40_000)
    }
    pub(super) fn service(&self) -> SocketAddr {
        at(self.addresses.cluster_ip, 80)
    }
    pub(super) fn backend(&self) -> SocketAddr {
        at(self.addresses.backend, 8080)
    }
    /// A packet in the middle of the connection or exchange.
    pub(super) fn between(&self, src: SocketAddr, dst: SocketAddr, payload: &[u8]) -> Vec<u8> {
        if self.udp {
            udp(src, dst, payload)
        } else {
            tcp(src, dst, Tcp::Ack, payload)
        }
    }
    /// A packet of the client.
    pub(super) fn question(&self, payload: &[u8]) -> Vec<u8> {
        self.between(self.client(), self.service(), payload)
    }
    /// A packet of the backend to the node's address and a masquerade port. It arrives at the inner
    /// uplink, which has another address.
    pub(super) fn answer(&self, to: SocketAddr, payload: &[u8]) -> Vec<u8> {
        self.between(self.backend(), to, payload)
    }

    /// Begins the connection through tc; returns the source that the backend sees.
    pub(super) fn establish(&self) -> SocketAddr {
        let (client, service) = (self.client(), self.service());
        let syn = if self.udp {
            udp(client, service, b"first")
        } else {
            tcp(client, service, Tcp::Syn, b"")
        };
        let source = seen(&self.by_tc(&syn)).src;
        assert_eq!(source.ip(), self.addresses.node, "masqueraded");
        let answer = if self.udp {
            udp(self.backend(), source, b"answer")
        } else {
            tcp(self.backend(), source, Tcp::SynAck, b"")
        };
        let back = self.ingress(&answer, INSIDE);
        let back = self.egress(&back.packet, false, OUTSIDE);
        assert_eq!(seen(&back.packet).dst, client);
        self.by_tc(&self.question(b""));
        source
    }

    /// Passes a client's packet through tc, in and out; returns the result.
    pub(super) fn by_tc(&self, packet: &[u8]) -> Vec<u8> {
        let inside = self.ingress(packet, OUTSIDE);
        assert_eq!(inside.verdict, NEXT, "{inside:?}");
        self.egress(&inside.packet, inside.marked, INSIDE).packet
    }
    fn ingress(&self, packet: &[u8], interface: u32) -> Outcome {
        let context = Context {
            interface,
            ..Context::default()
        };
        let packet = self.framed(packet, interface);
        let run = || self.world.ingress_by(&packet, context);
        self.netns.enter(run).expect("enter the node")
    }
    fn egress(&self, packet: &[u8], marked: bool, interface: u32) -> Outcome {
        let context = Context {
            interface,
            mark: if marked { 1 << 14 } else { 0 },
            came_by: OUTSIDE,
            ..Context::default()
        };
        let run = || self.world.egress_by(packet, context);
        self.netns.enter(run).expect("enter the node")
    }

    /// The packet as it arrives at an interface, with that interface's link-layer address.
    fn framed(&self, packet: &[u8], interface: u32) -> Vec<u8> {
        let mut packet = packet.to_vec();
        let is_ours = packet[..6] == NODE_MAC;
        if interface == INSIDE && is_ours {
            packet[..6].copy_from_slice(&INSIDE_MAC);
        }
        packet
    }

    fn at_xdp(&self, packet: &[u8], interface: u32) -> (u32, Vec<u8>, Vec<Counter>) {
        let run = || self.world.at_xdp(packet, interface);
        self.netns.enter(run).expect("enter the node")
    }

    /// Expects that XDP takes a packet, at the latest once its next hop is known: some packets go
    /// to the stack so that the stack sees them.
    pub(super) fn taken(&self, packet: &[u8], interface: u32) -> Taken {
        let packet = self.framed(packet, interface);
        for _ in 0..8 {
            let (verdict, after, counters) = self.at_xdp(&packet, interface);
            if verdict == PASS {
                assert_eq!((&after, counters), (&packet, vec![]), "untouched");
                continue;
            }
            let [counter] = counters[..] else {
                panic!("exactly one counter moves, not {counters:?}")
            };
            return Taken {
                verdict,
                packet: after,
                counter,
            };
        }
        panic!("XDP does not take it")
    }
    /// Expects that XDP passes a packet to tc, unchanged and uncounted.
    pub(super) fn left(&self, packet: &[u8], interface: u32) {
        let packet = self.framed(packet, interface);
        for _ in 0..3 {
            let (verdict, after, counters) = self.at_xdp(&packet, interface);
            assert_eq!(verdict, PASS);
            assert_eq!((after, counters), (packet.clone(), vec![]));
        }
    }

    /// The traffic counted for the backend.
    pub(super) fn traffic(&self) -> Traffic {
        let counted = self.world.counted();
        let mut found = counted.backends.iter();
        let one = found.find(|one| one.address == self.backend());
        one.expect("it is counted").traffic
    }

    /// Moves the backend behind the outer uplink.
    pub(super) fn move_backend_outside(&self) {
        let (backend, length) = (self.addresses.backend, self.length());
        self.ip(&format!(
            "route replace {backend}/{length} dev outside\n\
             neigh add {backend} lladdr {} dev outside nud permanent\n",
            mac(BACKEND_MAC)
        ));
        self.world.change_routes();
    }
    pub(super) fn set_backend_mac(&self, mac: &str) {
        let backend = self.addresses.backend;
        self.ip(&format!(
            "neigh replace {backend} lladdr {mac} dev inside nud permanent\n"
        ));
    }
    fn length(&self) -> u32 {
        if self.addresses.node.is_ipv6() {
            128
        } else {
            32
        }
    }
    /// Runs iproute2 commands, one a line.
    pub(super) fn ip(&self, batch: &str) {
        self.netns.ip(batch).expect("the node's routes");
    }
    /// Sets kernel parameters below /proc/sys/net.
    pub(super) fn set(&self, parameters: &[(&str, &str)]) {
        self.netns.set(parameters).expect("the node's parameters");
    }
}
