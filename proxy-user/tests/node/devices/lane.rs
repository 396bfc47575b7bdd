// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One lane: a client outside, which is also the router between two nodes, a pod on each node, and
//! the interfaces of one kind between them.
//!
//!     near pod -- node -- uplink -- client -- other node -- far pod
//!                   \------------ tunnel ------------/

use std::{
    fmt::Write,
    net::{IpAddr, SocketAddr},
};

use anyhow::{Context, Result};
use lab::node::{
    netns::NetNs,
    pod::{join, wire},
    topology::{HOST_PARAMETERS, NODE_PARAMETERS},
};

use super::kinds::{Kind, netkit};
use crate::objects::{Service, endpoint};

/// The port at which pods serve.
const PORT: u16 = 8080;
/// The address ranges of the pods of both nodes.
pub(super) const CLUSTER: &str = "10.40.0.0/16,10.41.0.0/16,fd00:40::/32,fd00:41::/32";

/// The networks of each lane: between the node and the client outside, between the client and the
/// other node, between the ends of the tunnel, of the pods of both nodes, and of services.
const OUTSIDE: u8 = 10;
const BEYOND: u8 = 20;
const SERVICES: u8 = 30;
const NEAR: u8 = 40;
const FAR: u8 = 41;
const TUNNEL: u8 = 42;

fn address(network: u8, v6: bool, lane: u8, last: u8) -> IpAddr {
    let text = match v6 {
        true => format!("fd00:{network}:0:{lane}::{last}"),
        false => format!("10.{network}.{lane}.{last}"),
    };
    text.parse().expect("an address")
}

/// The addresses of the node, by which its Node object knows it.
pub(super) fn of_node() -> [IpAddr; 2] {
    [false, true].map(|v6| address(OUTSIDE, v6, 1, 1))
}

pub(super) struct Lane<'a> {
    kind: Kind<'a>,
    number: u8,
    client: NetNs,
    other_node: NetNs,
    near_pod: NetNs,
    far_pod: NetNs,
}

/// A flow from a client through a service to its backend.
pub(super) struct Flow<'a> {
    pub(super) name: String,
    pub(super) client: &'a NetNs,
    pub(super) from: IpAddr,
    pub(super) service: SocketAddr,
    pub(super) backend: &'a NetNs,
    pub(super) served_at: SocketAddr,
    pub(super) is_masqueraded: bool,
    /// Whether at least one direction passes the node's stack even with `forwarding: auto`.
    pub(super) needs_stack: bool,
}

impl<'a> Lane<'a> {
    /// Builds the lane on an existing node.
    pub(super) fn build(node: &NetNs, kind: Kind<'a>, number: u8) -> Result<Self> {
        let lane = Self {
            kind,
            number,
            client: NetNs::new("the client")?,
            other_node: NetNs::new("the other node")?,
            near_pod: NetNs::new("the near pod")?,
            far_pod: NetNs::new("the far pod")?,
        };
        for router in [&lane.client, &lane.other_node] {
            router.set(&NODE_PARAMETERS)?;
        }
        let near = (node, &lane.near_pod, NEAR);
        for (node, pod, network) in [near, (&lane.other_node, &lane.far_pod, FAR)] {
            pod.set(&HOST_PARAMETERS)?;
            let addresses: Vec<_> = lane.families().map(|v6| lane.at(network, v6, 10)).collect();
            let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
            let interface = format!("pod{number}");
            let path = pod.path();
            if let Some(mode) = kind.name.strip_prefix("netkit ") {
                node.enter(|| netkit(&interface, "peer", mode))??;
                node.ip(&format!("link set peer netns {path} name eth0\n"))?;
            } else {
                let pair = format!("link add {interface} type veth peer name eth0 netns {path}\n");
                node.ip(&pair)?;
            }
            join(node, &interface, pod, &addresses, kind.mtu).context("a pod")?;
        }
        lane.wire_outside(node).context("the uplink")?;
        match kind.tunnel {
            "" => lane.route_pods(node).context("routes to pods")?,
            _ => lane.wire_tunnel(node).context("the tunnel")?,
        }
        Ok(lane)
    }

    fn families(&self) -> impl Iterator<Item = bool> + use<> {
        let both = [false, true].into_iter();
        both.take(1 + usize::from(self.kind.v6))
    }

    fn at(&self, network: u8, v6: bool, last: u8) -> String {
        address(network, v6, self.number, last).to_string()
    }

    /// An address with the length of its network.
    fn with_length(&self, network: u8, v6: bool, last: u8) -> String {
        let length = if v6 { 64 } else { 24 };
        format!("{}/{length}", self.at(network, v6, last))
    }

    /// The commands that give an interface its addresses and set it up.
    fn up(&self, interface: &str, network: u8, last: u8) -> String {
        let mut script = format!("link set {interface} up\n");
        for v6 in self.families() {
            let ip = self.with_length(network, v6, last);
            let nodad = if v6 { " nodad" } else { "" };
            script += &format!("address add {ip}{nodad} dev {interface}\n");
        }
        script
    }

    fn wire_outside(&self, node: &NetNs) -> Result<()> {
        let (client, other) = (&self.client, &self.other_node);
        let uplink = format!("up{}", self.number);
        let pairs = [0, 1].map(|pair| format!("{uplink}-{pair}"));
        for pair in &pairs {
            wire(node, pair, client, pair)?;
        }
        let commands = self.kind.uplink.replace("UPLINK", &uplink);
        let commands = commands.replace("PAIR0", &pairs[0]).replace("; ", "\n");
        let commands = commands.replace("PAIR1", &pairs[1]) + "\n";
        for (host, last) in [(node, 1), (client, 2)] {
            host.ip(&(commands.clone() + &self.up(&uplink, OUTSIDE, last)))?;
        }
        wire(other, "uplink", client, "beyond")?;
        other.ip(&self.up("uplink", BEYOND, 2))?;
        client.ip(&self.up("beyond", BEYOND, 1))?;
        for v6 in self.families() {
            let beyond = self.with_length(BEYOND, v6, 0);
            let (router, next) = (self.at(OUTSIDE, v6, 2), self.at(BEYOND, v6, 1));
            node.ip(&format!("route add {beyond} via {router}\n"))?;
            other.ip(&format!("route add default via {next}\n"))?;
        }
        Ok(())
    }

    fn wire_tunnel(&self, node: &NetNs) -> Result<()> {
        let here = self.at(OUTSIDE, false, 1);
        let there = self.at(BEYOND, false, 2);
        let (name, mtu) = (format!("tunnel{}", self.number), self.kind.mtu);
        for (end, own, other, last, beyond) in [
            (node, &here, &there, 1, [FAR].as_slice()),
            (&self.other_node, &there, &here, 2, &[NEAR, SERVICES]),
        ] {
            let script = self.kind.tunnel.replace("TUNNEL", &name);
            let mut script = script.replace("OWN", own).replace("OTHER", other);
            writeln!(script, "\nlink set {name} mtu {mtu}")?;
            script += &self.up(&name, TUNNEL, last);
            for (v6, network) in self.each_family(beyond) {
                let all = self.with_length(network, v6, 0);
                let far_end = self.at(TUNNEL, v6, 3 - last);
                writeln!(script, "route add {all} via {far_end} dev {name}")?;
            }
            end.ip(&script)?;
        }
        if self.kind.name == "wireguard" {
            exchange_keys(&name, [(node, &here), (&self.other_node, &there)])?;
        }
        Ok(())
    }

    /// Sets routes to the pods of a lane without a tunnel, on the nodes and the router.
    fn route_pods(&self, node: &NetNs) -> Result<()> {
        for (at, networks, next) in [
            (node, [FAR].as_slice(), (OUTSIDE, 2)),
            (&self.client, &[FAR], (BEYOND, 2)),
            (&self.client, &[NEAR, SERVICES], (OUTSIDE, 1)),
        ] {
            for (v6, beyond) in self.each_family(networks) {
                let (all, next) = (self.with_length(beyond, v6, 0), self.at(next.0, v6, next.1));
                at.ip(&format!("route add {all} via {next}\n"))?;
            }
        }
        Ok(())
    }

    fn each_family(&self, networks: &[u8]) -> impl Iterator<Item = (bool, u8)> {
        self.families()
            .flat_map(|v6| networks.iter().map(move |network| (v6, *network)))
    }

    /// A service for each family and backend, as manifests, and all flows that use them.
    pub(super) fn flows(&self) -> (String, Vec<Flow<'_>>) {
        let (mut objects, mut flows) = (Vec::new(), Vec::new());
        let near = ("near", &self.near_pod, NEAR, 10);
        let far = ("far", &self.far_pod, FAR, 10);
        let outside = ("outside", &self.client, OUTSIDE, 2);
        for (v6, number) in self.families().flat_map(|v6| [(v6, 1), (v6, 2)]) {
            let is_far = number == 2;
            let ((place, backend, of_backend, _), other) =
                if is_far { (far, near) } else { (near, far) };
            let node_port = 30_000 + u16::from(self.number) * 10;
            let node_port = node_port + u16::from(number) + 2 * u16::from(v6);
            let at = |network, last| address(network, v6, self.number, last);
            let (cluster_ip, served_at) = (at(SERVICES, number), at(of_backend, 10));
            let ports = [("tcp", "TCP"), ("udp", "UDP")];
            let ports = ports.map(|(name, protocol)| (name, protocol, 80, Some(node_port)));
            let name = format!("{place}-{}-{}", self.number, u8::from(v6));
            let service = Service::new(&name, &cluster_ip.to_string());
            let service = service.ports(&ports);
            let service = service.endpoints(vec![endpoint(&served_at.to_string())]);
            let service = match is_far {
                true => service.on("node-b"),
                false => service.local(),
            };
            objects.push(service.to_string());
            for ((from, client, network, last), service) in [
                (outside, SocketAddr::new(at(OUTSIDE, 1), node_port)),
                (other, SocketAddr::new(cluster_ip, 80)),
            ] {
                let from_outside = from == "outside";
                let kind = self.kind.name;
                flows.push(Flow {
                    name: format!("{kind}, from {from} to {service} with a {place} backend"),
                    client,
                    from: at(network, last),
                    service,
                    backend,
                    served_at: SocketAddr::new(served_at, PORT),
                    is_masqueraded: from_outside && is_far,
                    needs_stack: self.kind.needs_stack(from_outside, !is_far),
                });
            }
        }
        (objects.join("---\n"), flows)
    }
}

/// Gives each end of a WireGuard tunnel a key, and the other's public key.
fn exchange_keys(name: &str, ends: [(&NetNs, &String); 2]) -> Result<()> {
    const PORT: u16 = 51820;
    let wg = |end: &NetNs, words: &str, input: &str| {
        let words: Vec<_> = words.split(' ').collect();
        let said = end.feed("wg", &words, input);
        said.context("package wireguard-tools")
    };
    let [(here, _), (there, _)] = ends;
    let keys = [wg(here, "genkey", "")?, wg(there, "genkey", "")?];
    for (this, other) in [(0, 1), (1, 0)] {
        let ((end, _), (_, endpoint)) = (ends[this], ends[other]);
        let peer = wg(end, "pubkey", &keys[other])?;
        let settings = format!(
            "set {name} private-key /proc/self/fd/0 listen-port {PORT} peer {} allowed-ips 0.0.0.0/0,::/0 endpoint {endpoint}:{PORT}",
            peer.trim()
        );
        wg(end, &settings, &keys[this])?;
    }
    Ok(())
}
