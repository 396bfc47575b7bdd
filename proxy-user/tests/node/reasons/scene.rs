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
use crate::{agent::Agent, objects::service, repair::table, tunnel::Tunnel, world::World};

/// A configuration with tables that a few connections fill and that may not grow, and with two
/// masquerade ports.
pub(super) const CONFIG: &str = "portolan:
  unallocatedClusterIPs: drop
  reserveNodePorts: true
  masqueradePorts: [10000-10001]
  maps: {memory: 1, flows: 64, sockets: 16}
";
const RANGE: &str = "{apiVersion: networking.k8s.io/v1, kind: ServiceCIDR, metadata: {name: kubernetes}, spec: {cidrs: [172.30.0.0/16]}}";

/// The address of a pod behind the device `tun0`.
pub(super) const POD: &str = "10.40.9.2";
/// The address of a client behind `tun0` that is no pod.
pub(super) const OUTSIDE: &str = "10.9.0.2";
/// The address of a pod behind the device whose packets leave their checksum to be filled in.
const ODD: &str = "10.40.9.3";
/// A load balancer's address that allows none of these clients.
pub(super) const BALANCED: &str = "203.0.113.4:80";
/// The port of the endpoint to which no map leads.
pub(super) const TORN_PORT: u16 = 8099;

/// Services for all cases.
pub(super) fn write_objects(world: &World) {
    let empty = service("empty", "172.30.1.2");
    let (empty, _) = empty.split_once("---").expect("the service alone");
    let local = service("local", "172.30.1.3")
        .replace(
            "type: NodePort,",
            "type: NodePort, externalTrafficPolicy: Local,",
        )
        .replace("nodeName: node-a", "nodeName: node-b");
    let ranged = service("ranged", "172.30.1.4")
        .replace(
            "type: NodePort,",
            "type: LoadBalancer, loadBalancerSourceRanges: [192.0.2.0/24],",
        )
        .replacen(
            "---",
            "status: {loadBalancer: {ingress: [{ip: 203.0.113.4}]}}\n---",
            1,
        );
    let torn = service("torn", "172.30.1.5");
    let torn = torn.replace("port: 8080", &format!("port: {TORN_PORT}"));
    let mut objects = vec![
        RANGE.to_owned(),
        empty.to_owned(),
        local,
        ranged,
        torn,
        questions(),
    ];
    for (name, last) in [("cart", 1), ("till", 11), ("shelf", 12), ("door", 13)] {
        objects.push(service(name, &format!("172.30.1.{last}")));
    }
    world.write("objects.yaml", &objects.join("\n---\n"));
}

/// The manifest of a UDP service with more ports than the sockets map can hold.
fn questions() -> String {
    let ports = |target: &str| {
        let ports = QUESTIONS.map(|port| {
            format!(
                "{{name: p{port}, protocol: UDP, port: {}}}",
                if target.is_empty() { port } else { 8080 }
            )
        });
        ports.collect::<Vec<_>>().join(", ")
    };
    format!(
        "apiVersion: v1
kind: Service
metadata: {{name: questions, namespace: shop}}
spec: {{clusterIP: 172.30.1.9, clusterIPs: [172.30.1.9], ports: [{}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: questions-1, namespace: shop, labels: {{kubernetes.io/service-name: questions}}}}
addressType: IPv4
ports: [{}]
endpoints: [{{addresses: [10.40.1.20], nodeName: node-a}}]
",
        ports(""),
        ports("target")
    )
}
/// The ports of the UDP service.
pub(super) const QUESTIONS: std::ops::Range<u16> = 53..73;

/// The node with its agent and devices.
pub(super) struct Scene<'a> {
    pub(super) world: &'a World,
    pub(super) agent: &'a Agent<'a>,
    tunnel: RefCell<Tunnel>,
    odd: RefCell<Tunnel>,
}

impl<'a> Scene<'a> {
    pub(super) fn new(world: &'a World, agent: &'a Agent<'a>) -> Self {
        let tunnel = world.add_tunnel(OUTSIDE);
        let odd = world.node().enter(|| Tunnel::leaving_checksums("odd0"));
        let odd = odd.expect("enter the node").expect("a device");
        let balanced = BALANCED.replace(":80", "");
        let routes = format!(
            "route add {POD}/32 dev tun0\nroute add {balanced}/32 dev tun0\nlink set odd0 up\nroute add {ODD}/32 dev odd0\n"
        );
        world.node().ip(&routes).expect("routes");
        let scene = Self {
            world,
            agent,
            tunnel: RefCell::new(tunnel),
            odd: RefCell::new(odd),
        };
        // Waits until the programs are attached to both devices.
        crate::agent::eventually("both devices are served", agent, || {
            let attached = agent.metrics("/metrics");
            attached.contains("portolan_interfaces_attached 5\n")
        });
        scene
    }

    /// Makes a packet arrive through `tun0`.
    pub(super) fn send(&self, packet: &[u8]) {
        self.tunnel.borrow_mut().send(packet).expect("sent");
    }

    /// Makes a packet arrive that asks for a checksum to be filled in, far behind its header.
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
