// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A node's network namespace with two interfaces, for programs that look up routes and neighbours.

use std::net::IpAddr;

use lab::node::netns::NetNs;

use crate::service::Addresses;

/// An interface, and the hosts that are reached through it with their link-layer addresses.
pub(crate) struct Link<'a> {
    pub(crate) name: &'a str,
    pub(crate) index: u32,
    pub(crate) mac: [u8; 6],
    pub(crate) hosts: &'a [(IpAddr, [u8; 6])],
}

pub(crate) struct Network(NetNs);

impl Network {
    /// Makes the namespace; the node's address is at the first interface.
    pub(crate) fn new(a: Addresses, links: [Link<'_>; 2]) -> Self {
        let network = Self(NetNs::new("node").expect("run as root"));
        let nodad = if a.is_v6() { "nodad" } else { "" };
        let (mut interfaces, first) = (String::from("link set lo up\n"), links[0].name);
        let mut routes = format!("addr add {}/{} {nodad} dev {first}\n", a.node, length(a));
        for Link {
            name,
            index,
            mac,
            hosts,
        } in links
        {
            let mac = mac_text(mac);
            interfaces += &format!(
                "link add {name} index {index} address {mac} type veth peer name {name}-peer\n\
                 link set {name} mtu 1400 up\nlink set {name}-peer up\n"
            );
            for (host, mac) in hosts {
                let (length, mac) = (length(a), mac_text(*mac));
                routes += &format!(
                    "route add {host}/{length} dev {name}\n\
                     neigh add {host} lladdr {mac} dev {name} nud permanent\n"
                );
            }
        }
        network.ip(&interfaces);
        network.set(&["ipv6/conf/all/forwarding", "ipv4/ip_forward"].map(|name| (name, "1")));
        network.ip(&routes);
        network
    }
    /// Runs iproute2 commands, one a line.
    pub(crate) fn ip(&self, batch: &str) {
        self.0.ip(batch).expect("the node's routes");
    }
    /// Adds a routing rule for the address family.
    pub(crate) fn add_rule(&self, a: Addresses, rule: &str) {
        let family = if a.is_v6() { "-6" } else { "-4" };
        let words: Vec<_> = [family, "rule", "add"]
            .into_iter()
            .chain(rule.split(' '))
            .collect();
        self.0.feed("ip", &words, "").expect("a rule");
    }
    /// Sets kernel parameters below /proc/sys/net.
    pub(crate) fn set(&self, parameters: &[(&str, &str)]) {
        self.0.set(parameters).expect("the node's parameters");
    }
    pub(crate) fn enter<T>(&self, work: impl FnOnce() -> T) -> T {
        self.0.enter(work).expect("enter the node")
    }
}

/// The prefix length of a single host.
pub(crate) fn length(a: Addresses) -> u32 {
    if a.is_v6() { 128 } else { 32 }
}

pub(crate) fn mac_text(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}
