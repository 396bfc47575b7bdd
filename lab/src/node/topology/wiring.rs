// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Joins a topology's namespaces: links, addresses and routes, as scripts for iproute2.

use std::{collections::BTreeMap, fmt::Write, net::IpAddr};

use anyhow::Result;

use super::{
    super::layout::{host, nodad, subnet},
    Topology, UPLINK, UPLINK_PEER,
};

/// Numbers of the interfaces at one end of each pair. If both ends have the same number in their namespaces, the
/// kernel (6.18) takes up to a second to notice that the link is up.
const UPLINK_INDEX: usize = 50;
const FIRST_POD_INDEX: usize = 100;
const SEGMENT: &str = "segment";
const POD_BRIDGE: &str = "cni0";
/// The gateways of routed pods, as in CNI plugins of that kind.
const POINT_TO_POINT_GATEWAY: [&str; 2] = ["169.254.1.1", "fe80::ecee:eeff:feee:eeee"];
const POINT_TO_POINT_MAC: &str = "ee:ee:ee:ee:ee:ee";

impl Topology {
    /// The node's uplink, the router with the clients behind it, the other nodes.
    pub(super) fn wire_segment(&self) -> Result<()> {
        let layout = &self.layout;
        let mut node = String::from("link set lo up\n");
        let mut outside = format!(
            "link set lo up\nlink add {SEGMENT} type bridge forward_delay 0\nlink set {SEGMENT} up\n"
        );
        let mut remote = String::from("link set lo up\n");
        let segment = self.outside.path();
        for (index, (script, peer)) in
            (UPLINK_INDEX..).zip([(&mut node, UPLINK_PEER), (&mut remote, "to-remote")])
        {
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
            writeln!(
                node,
                "addr add {ip}/{}{} dev {UPLINK}",
                net.prefix_len(),
                nodad(*ip)
            )?;
            if subnets.contains_key(&net) {
                continue;
            }
            let router = layout.spare(net, true, &gateways)?;
            gateways.push(router);
            let others = layout.spare(net, true, &gateways)?;
            gateways.push(others);
            subnets.insert(net, router);
            first.entry(ip.is_ipv4()).or_insert([*ip, router, others]);
            let length = net.prefix_len();
            writeln!(
                outside,
                "addr add {router}/{length}{} dev {SEGMENT}",
                nodad(router)
            )?;
            writeln!(
                remote,
                "addr add {others}/{length}{} dev {UPLINK}",
                nodad(others)
            )?;
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
                writeln!(
                    outside,
                    "addr add {}{} dev {SEGMENT}",
                    host(*ip),
                    nodad(*ip)
                )?;
            }
            // Packets to an unowned address in a subnet of the node must pass the node as well.
            for ip in layout.unowned.iter().filter(same) {
                writeln!(node, "route add {} via {router} dev {UPLINK}", host(*ip))?;
                writeln!(
                    outside,
                    "route add {} via {node_ip} dev {SEGMENT}",
                    host(*ip)
                )?;
            }
        }
        self.node.ip(&node)?;
        self.remote.ip(&remote)?;
        self.outside.ip(&outside)
    }

    pub(super) fn wire_bridge(&mut self) -> Result<()> {
        let mut node = format!(
            "link add {POD_BRIDGE} type bridge forward_delay 0\nlink set {POD_BRIDGE} up\n"
        );
        let mut gateways = BTreeMap::new();
        for ip in self.layout.pod_addresses() {
            let net = subnet(ip);
            if gateways.contains_key(&net) {
                continue;
            }
            let gateway = self.layout.spare(net, false, &[])?;
            gateways.insert(net, gateway);
            self.node_addresses.push(gateway);
            writeln!(
                node,
                "addr add {gateway}/{}{} dev {POD_BRIDGE}",
                net.prefix_len(),
                nodad(gateway)
            )?;
        }
        for (number, pod) in self.pods.iter().enumerate() {
            writeln!(
                node,
                "link add veth{number} index {} type veth peer name eth0 netns {}",
                FIRST_POD_INDEX + number,
                pod.path()
            )?;
            writeln!(node, "link set veth{number} master {POD_BRIDGE} up")?;
        }
        self.node.ip(&node)?;
        let elsewhere = || self.layout.remote.iter().chain(&self.layout.unowned);
        for (pod, addresses) in self.pods.iter().zip(&self.layout.pods) {
            let mut script = String::from("link set lo up\nlink set eth0 up\n");
            for ip in addresses {
                let net = subnet(*ip);
                let gateway = gateways[&net];
                writeln!(
                    script,
                    "addr add {ip}/{}{} dev eth0",
                    net.prefix_len(),
                    nodad(*ip)
                )?;
                writeln!(script, "route add default via {gateway} dev eth0")?;
                for other in elsewhere().filter(|other| net.contains(*other)) {
                    writeln!(script, "route add {} via {gateway} dev eth0", host(*other))?;
                }
            }
            pod.ip(&script)?;
        }
        Ok(())
    }

    pub(super) fn wire_routed(&self) -> Result<()> {
        let mut node = String::new();
        for (number, (pod, addresses)) in self.pods.iter().zip(&self.layout.pods).enumerate() {
            writeln!(
                node,
                "link add veth{number} index {} address {POINT_TO_POINT_MAC} type veth peer name eth0 netns {}",
                FIRST_POD_INDEX + number,
                pod.path()
            )?;
            writeln!(node, "link set veth{number} up")?;
            for ip in addresses {
                writeln!(node, "route add {} dev veth{number}", host(*ip))?;
            }
        }
        self.node.ip(&node)?;
        for (pod, addresses) in self.pods.iter().zip(&self.layout.pods) {
            let mut script = String::from("link set lo up\nlink set eth0 up\n");
            for ip in addresses {
                let gateway = POINT_TO_POINT_GATEWAY[usize::from(ip.is_ipv6())];
                writeln!(script, "addr add {}{} dev eth0", host(*ip), nodad(*ip))?;
                writeln!(
                    script,
                    "neigh replace {gateway} lladdr {POINT_TO_POINT_MAC} dev eth0 nud permanent"
                )?;
                writeln!(script, "route add default via {gateway} dev eth0 onlink")?;
            }
            pod.ip(&script)?;
        }
        Ok(())
    }
}
