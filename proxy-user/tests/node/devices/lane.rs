// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One lane: a client outside, which is also the router between two nodes, a pod on each node, and
//! the interfaces of one kind between them.
//!
//!     near pod -- node -- uplink -- client -- other node -- far pod
//!                   \------------ tunnel ------------/

use std::{
    fmt::{self, Display, Write},
    net::{IpAddr, SocketAddr},
};

use anyhow::{Context, Result};
use lab::node::{
    netns::NetNs,
    pod::join,
    topology::{HOST_PARAMETERS, NODE_PARAMETERS},
};

use super::{
    addresses::{Backend, Network, Service, address},
    kinds::Kind,
    pair,
};

pub(super) struct Lane {
    kind: Kind,
    number: u8,
    client: NetNs,
    other_node: NetNs,
    near_pod: NetNs,
    far_pod: NetNs,
}

/// A flow from a client through a service to its backend.
pub(super) struct Flow<'a> {
    name: String,
    pub(super) client: &'a NetNs,
    pub(super) from: IpAddr,
    pub(super) service: SocketAddr,
    pub(super) backend: &'a NetNs,
    pub(super) served_at: SocketAddr,
    pub(super) is_masqueraded: bool,
    /// Whether at least one direction passes the node's stack even with `forwarding: auto`.
    pub(super) needs_stack: bool,
}

impl Display for Flow<'_> {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(&self.name)
    }
}

impl Lane {
    /// Builds the lane on an existing node.
    pub(super) fn build(node: &NetNs, kind: Kind, number: u8) -> Result<Self> {
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
            router.ip("link set lo up\n")?;
        }
        for (node, pod, network) in [
            (node, &lane.near_pod, Network::NearPod),
            (&lane.other_node, &lane.far_pod, Network::FarPod),
        ] {
            pod.set(&HOST_PARAMETERS)?;
            let addresses = lane.families().map(|v6| lane.at(network, v6, 10));
            let addresses: Vec<_> = addresses.collect();
            let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
            let interface = format!("pod{number}");
            pair::make(kind.pods, node, &interface, pod).context("a pod's interfaces")?;
            join(node, &interface, pod, &addresses, kind.mtu).context("a pod")?;
        }
        lane.wire_outside(node).context("the uplink")?;
        match kind.tunnel {
            Some(link) => lane.wire_tunnel(node, link).context("the tunnel")?,
            None => lane.route_pods(node).context("routes to pods")?,
        }
        Ok(lane)
    }

    fn families(&self) -> impl Iterator<Item = bool> {
        let both = [false, true].into_iter();
        both.take(1 + usize::from(self.kind.v6))
    }

    fn at(&self, network: Network, v6: bool, last: u8) -> String {
        address(network, v6, self.number, last).to_string()
    }

    /// The address range of a network.
    fn all(&self, network: Network, v6: bool) -> String {
        format!("{}/{}", self.at(network, v6, 0), length(v6))
    }

    fn uplink(&self) -> String {
        format!("up{}", self.number)
    }

    fn tunnel(&self) -> String {
        format!("tunnel{}", self.number)
    }

    fn wire_outside(&self, node: &NetNs) -> Result<()> {
        let uplink = self.uplink();
        let fill = |text: &str| {
            text.replace("UPLINK", &uplink)
                .replace("OUTSIDE", &self.client.path())
        };
        let mut here = fill(self.kind.uplink.at_the_node);
        let mut outside = fill(self.kind.uplink.outside);
        let mut there = format!(
            "link add {uplink} type veth peer name beyond netns {}\n",
            self.client.path()
        );
        here += &self.up(&uplink, Network::Uplink, 1);
        outside += &self.up(&uplink, Network::Uplink, 2);
        outside += &self.up("beyond", Network::Beyond, 1);
        there += &self.up(&uplink, Network::Beyond, 2);
        for v6 in self.families() {
            let [router, beyond] = [(Network::Uplink, 2), (Network::Beyond, 1)]
                .map(|(net, last)| self.at(net, v6, last));
            writeln!(
                here,
                "route add {} via {router}",
                self.all(Network::Beyond, v6)
            )?;
            writeln!(there, "route add default via {beyond}")?;
        }
        node.ip(&here)?;
        self.other_node.ip(&there)?;
        self.client.ip(&outside)
    }

    /// The commands that give an interface its addresses and set it up.
    fn up(&self, interface: &str, network: Network, last: u8) -> String {
        let addresses = self.families().map(|v6| {
            let (ip, length) = (self.at(network, v6, last), length(v6));
            let nodad = if v6 { " nodad" } else { "" };
            format!("address add {ip}/{length}{nodad} dev {interface}\n")
        });
        let up = format!("link set {interface} up\n");
        addresses.chain([up]).collect()
    }

    fn wire_tunnel(&self, node: &NetNs, link: &str) -> Result<()> {
        let here = self.at(Network::Uplink, false, 1);
        let there = self.at(Network::Beyond, false, 2);
        let name = self.tunnel();
        let mtu = self.kind.mtu;
        let there_from_here = [Network::FarPod].as_slice();
        let here_from_there = [Network::NearPod, Network::Services].as_slice();
        for (end, own, other, last, beyond) in [
            (node, &here, &there, 1, there_from_here),
            (&self.other_node, &there, &here, 2, here_from_there),
        ] {
            let mut script = link
                .replace("TUNNEL", &name)
                .replace("OWN", own)
                .replace("OTHER", other);
            writeln!(script, "link set {name} mtu {mtu}")?;
            script += &self.up(&name, Network::Tunnel, last);
            for (v6, network) in self.each_family(beyond) {
                let (all, far_end) = (
                    self.all(network, v6),
                    self.at(Network::Tunnel, v6, 3 - last),
                );
                writeln!(script, "route add {all} via {far_end} dev {name}")?;
            }
            end.ip(&script)?;
        }
        if self.kind.keys {
            exchange_keys(&name, [(node, &here), (&self.other_node, &there)])?;
        }
        Ok(())
    }

    /// Sets routes to the pods of a lane without a tunnel, on the nodes and the router between
    /// them.
    fn route_pods(&self, node: &NetNs) -> Result<()> {
        for (at, networks, network, last) in [
            (node, [Network::FarPod].as_slice(), Network::Uplink, 2),
            (&self.client, &[Network::FarPod], Network::Beyond, 2),
            (
                &self.client,
                &[Network::NearPod, Network::Services],
                Network::Uplink,
                1,
            ),
        ] {
            for (v6, beyond) in self.each_family(networks) {
                let (all, next) = (self.all(beyond, v6), self.at(network, v6, last));
                at.ip(&format!("route add {all} via {next}\n"))?;
            }
        }
        Ok(())
    }

    fn each_family(&self, networks: &[Network]) -> impl Iterator<Item = (bool, Network)> {
        self.families()
            .flat_map(|v6| networks.iter().map(move |network| (v6, *network)))
    }

    fn services(&self) -> impl Iterator<Item = Service> {
        let lane = self.number;
        self.families().flat_map(move |v6| {
            [Backend::Near, Backend::Far].map(|backend| Service { lane, v6, backend })
        })
    }

    pub(super) fn objects(&self) -> String {
        let objects = self.services().map(|service| service.objects().to_string());
        objects.collect::<Vec<_>>().join("---\n")
    }

    /// All flows that a lane can carry.
    pub(super) fn flows(&self) -> Vec<Flow<'_>> {
        let mut flows = Vec::new();
        for service in self.services() {
            let is_far = service.backend == Backend::Far;
            let near = ("near", &self.near_pod, Network::NearPod, 10);
            let far = ("far", &self.far_pod, Network::FarPod, 10);
            let ((place, backend, ..), other) = if is_far { (far, near) } else { (near, far) };
            let outside = ("outside", &self.client, Network::Uplink, 2);
            for ((from, client, network, last), address) in
                [(outside, service.outside()), (other, service.inside())]
            {
                let from_outside = from == "outside";
                flows.push(Flow {
                    name: format!(
                        "{}, from {from} to {address} with a {place} backend",
                        self.kind.name
                    ),
                    client,
                    from: self::address(network, service.v6, self.number, last),
                    service: address,
                    backend,
                    served_at: service.served_at(),
                    is_masqueraded: from_outside && is_far,
                    needs_stack: self.kind.by_stack.is_of(from_outside, !is_far),
                });
            }
        }
        flows
    }
}

const fn length(v6: bool) -> u8 {
    if v6 { 64 } else { 24 }
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
