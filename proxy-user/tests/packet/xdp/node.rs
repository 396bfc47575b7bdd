// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A node with two uplinks, a client behind one and a backend behind the other, and the programs
//! that run on it.

use std::net::SocketAddr;

use datapath::XdpMode;
use proxy_common::{
    Counter, Protocol,
    traffic::Traffic,
    xdp::{Abilities, Uplink},
};

use crate::{
    network::{Link, Network, length, mac_text},
    packets::{NODE_MAC, Tcp, packet_over, seen, tcp, udp},
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

/// The node of these tests.
pub(super) struct Node {
    pub(super) network: Network,
    pub(super) world: World,
    pub(super) addresses: Addresses,
    udp: bool,
}

impl Node {
    pub(super) fn new(a: Addresses, udp: bool) -> Self {
        let link = |name, index, mac, hosts| Link {
            name,
            index,
            mac,
            hosts,
        };
        let network = Network::new(
            a,
            [
                link("outside", OUTSIDE, NODE_MAC, &[(a.outsider, CLIENT_MAC)]),
                link("inside", INSIDE, INSIDE_MAC, &[(a.backend, BACKEND_MAC)]),
            ],
        );
        let protocol = if udp { Protocol::UDP } else { Protocol::TCP };
        let xdp = Some(XdpMode::Native);
        let mut world = World::with(|options| options.xdp = xdp, &[Service::over(protocol, a)]);
        for index in [OUTSIDE, INSIDE] {
            world.set_interface(index, 0);
        }
        let node = Self {
            network,
            world,
            addresses: a,
            udp,
        };
        for index in [OUTSIDE, INSIDE] {
            node.permit(index, Abilities::ALL);
        }
        node.world.change_routes();
        node
    }

    pub(super) fn client(&self) -> SocketAddr {
        self.addresses.outside_client()
    }
    pub(super) fn service(&self) -> SocketAddr {
        self.addresses.service()
    }
    pub(super) fn backend(&self) -> SocketAddr {
        self.addresses.endpoint()
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
        let protocol = if self.udp {
            Protocol::UDP
        } else {
            Protocol::TCP
        };
        let first = |src, dst, flags| packet_over(protocol, src, dst, flags);
        let syn = first(client, service, Tcp::Syn);
        let source = seen(&self.by_tc(&syn)).src;
        assert_eq!(source.ip(), self.addresses.node, "masqueraded");
        let answer = first(self.backend(), source, Tcp::SynAck);
        let back = self.ingress(&answer, INSIDE);
        let back = self.egress(&back.packet, false, OUTSIDE);
        assert_eq!(back.dst(), client);
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
        self.network
            .enter(|| self.world.ingress_by(&packet, context))
    }
    fn egress(&self, packet: &[u8], marked: bool, interface: u32) -> Outcome {
        let context = Context {
            interface,
            mark: if marked { 1 << 14 } else { 0 },
            came_by: OUTSIDE,
            ..Context::default()
        };
        self.network.enter(|| self.world.egress_by(packet, context))
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
        self.network.enter(|| self.world.at_xdp(packet, interface))
    }

    /// Expects that XDP takes a packet, at the latest once its next hop is known: some packets go
    /// to the stack so that the stack sees them.
    pub(super) fn taken(&self, packet: &[u8], interface: u32) -> Outcome {
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
            return Outcome {
                verdict,
                packet: after,
                note: 0,
                counter,
                marked: false,
                mark: 0,
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
        let (backend, length) = (self.addresses.backend, length(self.addresses));
        let mac = mac_text(BACKEND_MAC);
        self.network.ip(&format!(
            "route replace {backend}/{length} dev outside\n\
             neigh add {backend} lladdr {mac} dev outside nud permanent\n"
        ));
        self.world.change_routes();
    }
    /// Removes the backend's route or neighbour.
    pub(super) fn remove(&self, what: &str) {
        let backend = self.addresses.backend;
        self.network
            .ip(&format!("{what} del {backend} dev inside\n"));
    }
    pub(super) fn set_backend_mac(&self, mac: &str) {
        let backend = self.addresses.backend;
        self.network.ip(&format!(
            "neigh replace {backend} lladdr {mac} dev inside nud permanent\n"
        ));
    }
    /// Stores what an uplink can do.
    pub(super) fn permit(&self, uplink: u32, abilities: Abilities) {
        let mac = if uplink == INSIDE {
            INSIDE_MAC
        } else {
            NODE_MAC
        };
        self.world.set_uplink(uplink, Uplink::new(mac, abilities));
    }
}
