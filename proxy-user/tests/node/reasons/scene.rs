// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The node of all cases: small tables, few masquerade ports, services of every kind, and two
//! devices through which packets of any client can arrive.

use std::{
    cell::RefCell,
    net::{Ipv4Addr, SocketAddrV4},
};

use datapath::maps::tables::Table;
use linux::Plain;
use nix::sys::signal::Signal;

use super::packets::{accepted, ack, syn};
use crate::{
    agent::{Agent, eventually},
    objects::{SERVICE_CIDR, Service},
    repair::table,
    tunnel::Tunnel,
    world::World,
};

/// A configuration with tables that a few connections fill and that may not grow, and with two
/// masquerade ports.
pub(super) const CONFIG: &str = "portolan:
  unallocatedClusterIPs: drop
  reserveNodePorts: true
  masqueradePorts: [10000-10001]
  maps: {memory: 1, flows: 64, sockets: 16}
";
/// The address of a pod behind the device `tun0`.
pub(super) const POD: &str = "10.40.9.2";
/// The address of a client behind `tun0` that is no pod.
pub(super) const OUTSIDE: &str = "10.9.0.2";
/// The address of a pod behind the device that leaves checksums of its packets to be computed.
const ODD: &str = "10.40.9.3";
/// A load balancer's address whose allowed source ranges exclude all clients here.
pub(super) const BALANCED: &str = "203.0.113.4:80";
/// The target port of the service whose only slot a case makes inconsistent.
pub(super) const TORN_PORT: u16 = 8099;

/// Services for all cases.
pub(super) fn write_objects(world: &World) {
    world.write("range.yaml", SERVICE_CIDR);
    // The UDP service has more ports than the sockets map can hold.
    let names: Vec<_> = QUESTIONS.map(|port| format!("p{port}")).collect();
    let ports = QUESTIONS.zip(&names);
    let ports: Vec<_> = ports
        .map(|(port, name)| (name.as_str(), "UDP", port, None))
        .collect();
    for service in [
        Service::new("empty", "172.30.1.2").alone(),
        Service::new("local", "172.30.1.3").local().on("node-b"),
        Service::new("ranged", "172.30.1.4")
            .balanced("203.0.113.4")
            .only_for(&["192.0.2.0/24"]),
        Service::new("torn", "172.30.1.5").target(TORN_PORT),
        Service::new("questions", "172.30.1.9").ports(&ports),
        Service::new("till", "172.30.1.11"),
        Service::new("shelf", "172.30.1.12"),
        Service::new("door", "172.30.1.13"),
    ] {
        world.write(&service.file(), service);
    }
}

/// The ports of the UDP service.
pub(super) const QUESTIONS: std::ops::Range<u16> = 53..73;

/// The node with its agent and devices.
pub(super) struct Scene<'a> {
    pub(super) world: &'a World,
    pub(super) agent: &'a Agent,
    tunnel: RefCell<Tunnel>,
    odd: RefCell<Tunnel>,
}

impl<'a> Scene<'a> {
    pub(super) fn new(world: &'a World, agent: &'a Agent) -> Self {
        let tunnel = world.add_tunnel(OUTSIDE);
        let odd = world.node().enter(|| Tunnel::leaving_checksums("odd0"));
        let odd = odd.expect("enter the node").expect("a device");
        world.ip(&format!(
            "route add {POD}/32 dev tun0\nroute add 203.0.113.4/32 dev tun0\nlink set odd0 up\nroute add {ODD}/32 dev odd0"
        ));
        let scene = Self {
            world,
            agent,
            tunnel: RefCell::new(tunnel),
            odd: RefCell::new(odd),
        };
        // Waits until the programs are attached to both devices.
        eventually("both devices are served", agent, || {
            agent.metric("portolan_interfaces_attached") == Some(5)
        });
        scene
    }

    /// Makes a packet arrive through `tun0`.
    pub(super) fn send(&self, packet: &[u8]) {
        self.tunnel.borrow_mut().send(packet).expect("sent");
    }

    /// Makes a packet arrive whose checksum still has to be computed, far behind its headers.
    pub(super) fn send_odd(&self, from_port: u16, to: &str) {
        let from = SocketAddrV4::new(ODD.parse().expect("an address"), from_port);
        // A virtio_net_hdr: the checksum covers the bytes from 100 on and is stored 16 bytes after
        // that.
        let mut packet = vec![1, 0, 0, 0, 0, 0, 100, 0, 16, 0];
        packet.extend(syn(from, at(to), &[0; 200]));
        self.odd.borrow_mut().send(&packet).expect("sent");
    }

    /// Opens a connection; true if the server accepted it.
    pub(super) fn connect(&self, from: &str, port: u16, to: &str) -> bool {
        let (client, server) = (from_port(from, port), at(to));
        self.send(&syn(client, server, &[]));
        let mut tunnel = self.tunnel.borrow_mut();
        let answer = tunnel.receive(|packet| accepted(packet, client, server).is_some());
        let Some(number) = answer
            .ok()
            .and_then(|packet| accepted(&packet, client, server))
        else {
            return false;
        };
        tunnel.send(&ack(client, server, number)).expect("sent");
        true
    }

    pub(super) fn table<K: Plain, V: Plain>(&self, map: &str) -> Table<K, V> {
        table(self.world, map)
    }

    /// Stops the agent, so that it does not repair maps while they are wrong.
    pub(super) fn halt_agent(&self) {
        self.agent.signal(Signal::SIGSTOP);
    }
    pub(super) fn go_on(&self) {
        self.agent.signal(Signal::SIGCONT);
    }
}

/// Parses an address and port.
pub(super) fn at(text: &str) -> SocketAddrV4 {
    text.parse().expect("an address and port")
}

/// The address and port of a client.
pub(super) fn from_port(address: &str, port: u16) -> SocketAddrV4 {
    let address: Ipv4Addr = address.parse().expect("an address");
    SocketAddrV4::new(address, port)
}
