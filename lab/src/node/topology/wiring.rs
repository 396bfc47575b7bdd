// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Joins a topology's network namespaces: links, addresses and routes, as scripts for iproute2.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
    net::IpAddr,
    sync::atomic::{AtomicUsize, Ordering},
};

use anyhow::{Context, Result};
use ipnet::IpNet;

use super::{
    super::layout::{host, nodad, subnet},
    Plumbing, Topology, UPLINK, UPLINK_PEER,
};

/// Interface indexes at one end of each veth pair. If both ends have the same index in their
/// namespaces, the kernel (6.18) takes up to a second to notice that the link is up.
const UPLINK_INDEX: usize = 50;
const FIRST_POD_INDEX: usize = 100;
const SEGMENT: &str = "segment";
const POD_BRIDGE: &str = "cni0";
/// The gateways of pods with `Plumbing::Routed`, as in CNI plugins that route to each pod.
const POINT_TO_POINT_GATEWAY: [&str; 2] = ["169.254.1.1", "fe80::ecee:eeff:feee:eeee"];
const POINT_TO_POINT_MAC: &str = "ee:ee:ee:ee:ee:ee";
const BRIDGE_MAC: &str = "02:00:00:00:ff:01";

impl Topology {
    /// Connects the node's uplink, the router and the clients behind it, and the other nodes.
    pub(super) fn wire_segment(&self) -> Result<()> {
        let layout = &self.layout;
        let mut node = String::from("link set lo up\n");
        let mut outside = format!(
            "link set lo up\nlink add {SEGMENT} type bridge forward_delay 0\nlink set {SEGMENT} up\n"
        );
        let mut remote = String::from("link set lo up\n");
        let segment = self.outside.path();
        let ends = [(&mut node, UPLINK_PEER), (&mut remote, "to-remote")];
        for (index, (script, peer)) in (UPLINK_INDEX..).zip(ends) {
            writeln!(
                script,
                "link add {UPLINK} index {index} type veth peer name {peer} netns {segment}"
            )?;
            writeln!(script, "link set {UPLINK} up")?;
            writeln!(outside, "link set {peer} master {SEGMENT} up")?;
        }
        let mut gateways: Vec<IpAddr> = Vec::new();
        let mut first: BTreeMap<bool, [IpAddr; 3]> = BTreeMap::new();
        let mut subnets = BTreeMap::new();
        for ip in &layout.node {
            let net = subnet(*ip);
            let rest = format!("{}{}", net.prefix_len(), nodad(*ip));
            writeln!(node, "addr add {ip}/{rest} dev {UPLINK}")?;
            if subnets.contains_key(&net) {
                continue;
            }
            let router = layout.spare(net, true, &gateways)?;
            gateways.push(router);
            let others = layout.spare(net, true, &gateways)?;
            gateways.push(others);
            subnets.insert(net, router);
            first.entry(ip.is_ipv4()).or_insert([*ip, router, others]);
            writeln!(outside, "addr add {router}/{rest} dev {SEGMENT}")?;
            writeln!(remote, "addr add {others}/{rest} dev {UPLINK}")?;
        }
        for [node_ip, router, others] in first.values() {
            let same = |ip: &&IpAddr| ip.is_ipv4() == node_ip.is_ipv4();
            writeln!(node, "route add default via {router} dev {UPLINK}")?;
            writeln!(outside, "route add default via {node_ip} dev {SEGMENT}")?;
            writeln!(remote, "route add default via {node_ip} dev {UPLINK}")?;
            for ip in layout.remote.iter().filter(same) {
                writeln!(remote, "addr add {}{} dev {UPLINK}", host(*ip), nodad(*ip))?;
                writeln!(node, "route add {} via {others} dev {UPLINK}", host(*ip))?;
            }
            for ip in layout.outside.iter().filter(same) {
                let address = format!("{}{}", host(*ip), nodad(*ip));
                writeln!(outside, "addr add {address} dev {SEGMENT}")?;
            }
            // Packets to an unowned address must pass the node, even in a subnet of the node.
            for ip in layout.unowned.iter().filter(same) {
                let to = host(*ip);
                writeln!(node, "route add {to} via {router} dev {UPLINK}")?;
                writeln!(outside, "route add {to} via {node_ip} dev {SEGMENT}")?;
            }
        }
        self.node.ip(&node)?;
        self.remote.ip(&remote)?;
        self.outside.ip(&outside)
    }

    pub(super) fn wire_bridge(&mut self) -> Result<()> {
        // The bridge needs an explicit MAC address. One derived from its ports may change when a
        // pod comes or goes. Frames on their way to the old address would then be lost, with any
        // proxy.
        let mut node = format!(
            "link add {POD_BRIDGE} address {BRIDGE_MAC} type bridge forward_delay 0\nlink set {POD_BRIDGE} up\n"
        );
        let mut subnets = BTreeSet::new();
        for ip in self.layout.pod_addresses() {
            let net = subnet(ip);
            if !subnets.insert(net) {
                continue;
            }
            let gateway = self.layout.spare(net, false, &[])?;
            self.node_addresses.push(gateway);
            let rest = format!("{}{}", net.prefix_len(), nodad(gateway));
            writeln!(node, "addr add {gateway}/{rest} dev {POD_BRIDGE}")?;
        }
        self.node.ip(&node)
    }

    /// Joins all pods to the node, on the bridge or by routes.
    pub(super) fn wire_pods(&self) -> Result<()> {
        let mut node = String::new();
        for number in 0..self.pods.len() {
            node += &self.link(number, number, FIRST_POD_INDEX + number);
        }
        self.node.ip(&node)?;
        for number in 0..self.pods.len() {
            self.pods[number].ip(&self.addresses(number)?)?;
        }
        Ok(())
    }

    /// Removes a pod's interface. The kernels of the pod and the node forget all about it.
    pub fn unplug(&self, pod: usize) -> Result<()> {
        self.node.ip(&format!("link del veth{pod}\n"))
    }

    /// Joins a pod again after `unplug`. Its interface has another index and another MAC address,
    /// like that of a new pod. A bridged pod announces its addresses to its neighbours, as with CNI
    /// plugins.
    pub fn plug(&self, pod: usize) -> Result<()> {
        self.plug_as(pod, pod)
    }

    /// Like [`Self::plug`], with the addresses of the pod `of` in the layout, which is unplugged.
    pub fn plug_as(&self, pod: usize, of: usize) -> Result<()> {
        static NEXT: AtomicUsize = AtomicUsize::new(1000);
        let index = NEXT.fetch_add(1, Ordering::Relaxed);
        self.node.ip(&self.link(pod, of, index))?;
        let namespace = &self.pods[pod];
        namespace.ip(&self.addresses(of)?)?;
        self.settle()?;
        if self.plumbing == Plumbing::Routed {
            // A routed pod has no neighbours except the node.
            return Ok(());
        }
        // Packets that are sent before the bridge forwards are lost.
        let of_v6 = ("ipv6/conf/eth0/ndisc_notify", "1");
        namespace.set(&[("ipv4/conf/eth0/arp_notify", "1"), of_v6])?;
        let [high, low] = (index as u16).to_be_bytes();
        let mac = format!("02:00:00:00:{high:02x}:{low:02x}");
        namespace.ip(&format!("link set eth0 address {mac}\n"))
    }

    /// Returns commands for the node that create a pod's veth pair. The pod has the addresses of
    /// the pod `of` in the layout.
    fn link(&self, number: usize, of: usize, index: usize) -> String {
        let pod = self.pods[number].path();
        match self.plumbing {
            Plumbing::Bridge => format!(
                "link add veth{number} index {index} type veth peer name eth0 netns {pod}\n\
                 link set veth{number} master {POD_BRIDGE} up\n"
            ),
            Plumbing::Routed => {
                let routes = self.layout.pods[of].iter();
                let routes = routes.map(|ip| format!("route add {} dev veth{number}\n", host(*ip)));
                format!(
                    "link add veth{number} index {index} address {POINT_TO_POINT_MAC} type veth peer name eth0 netns {pod}\n\
                     link set veth{number} up\n{}",
                    routes.collect::<String>()
                )
            }
        }
    }

    /// Returns commands for a pod that set the addresses and routes of its interface, those of the
    /// pod `number` in the layout.
    fn addresses(&self, number: usize) -> Result<String> {
        let mut script = String::from("link set lo up\n");
        let addresses = &self.layout.pods[number];
        for ip in addresses {
            let net = match self.plumbing {
                Plumbing::Bridge => IpNet::new(*ip, subnet(*ip).prefix_len())?,
                Plumbing::Routed => host(*ip),
            };
            writeln!(script, "addr add {net}{} dev eth0", nodad(*ip))?;
        }
        script += "link set eth0 up\n";
        for ip in addresses {
            match self.plumbing {
                Plumbing::Bridge => self.route_bridged(*ip, &mut script)?,
                Plumbing::Routed => {
                    let gateway = POINT_TO_POINT_GATEWAY[usize::from(ip.is_ipv6())];
                    writeln!(
                        script,
                        "neigh replace {gateway} lladdr {POINT_TO_POINT_MAC} dev eth0 nud permanent"
                    )?;
                    writeln!(script, "route add default via {gateway} dev eth0 onlink")?;
                }
            }
        }
        Ok(script)
    }

    fn route_bridged(&self, ip: IpAddr, script: &mut String) -> Result<()> {
        let net = subnet(ip);
        let mut gateways = self.node_addresses.iter().rev();
        let gateway = gateways.find(|gateway| net.contains(*gateway));
        let gateway = gateway.context("a pod's subnet without a gateway")?;
        writeln!(script, "route add default via {gateway} dev eth0")?;
        let elsewhere = self.layout.remote.iter().chain(&self.layout.unowned);
        for other in elsewhere.filter(|other| net.contains(*other)) {
            writeln!(script, "route add {} via {gateway} dev eth0", host(*other))?;
        }
        Ok(())
    }
}
