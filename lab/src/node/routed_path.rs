// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A host far away from a node: two routers lie between them, and the MTU of any link on the path
//! can be reduced. Used by tests of path MTU discovery.

use std::{
    net::IpAddr,
    sync::atomic::{AtomicUsize, Ordering},
};

use anyhow::{Context, Result};

use super::{
    layout::{nodad, subnet},
    netns::NetNs,
    offload::prepare_far_end,
    topology::{HOST_PARAMETERS, NODE_PARAMETERS},
};

/// The name of the interface towards the node, at both routers and the host.
const TO_NODE: &str = "eth0";
/// The name of the interface towards the host, at both routers.
const TO_HOST: &str = "eth1";

/// The two routers and the host, the nearest to the node first. Dropping it removes them.
pub struct RoutedPath {
    hops: [NetNs; 3],
    /// The node's interface towards the first router.
    interface: String,
}

impl RoutedPath {
    /// Joins a far host to a node. `interface` is the name of the node's new interface. `links` are
    /// the addresses of each link's two ends, from the node to the host; each link has its own
    /// subnet (/24 or /64).
    pub fn build(node: &NetNs, interface: &str, links: [[IpAddr; 2]; 3]) -> Result<Self> {
        let hops = [
            NetNs::new("the near router")?,
            NetNs::new("the far router")?,
            NetNs::new("the far host")?,
        ];
        let way = Self {
            hops,
            interface: interface.to_owned(),
        };
        let [near, far, host] = &way.hops;
        near.set(&NODE_PARAMETERS)?;
        far.set(&NODE_PARAMETERS)?;
        host.set(&HOST_PARAMETERS)?;
        for (number, [this, next]) in links.into_iter().enumerate() {
            let (from, down) = way.end(node, number);
            way.hops[number]
                .ip("link set lo up\n")
                .and_then(|()| join(from, down, this, &way.hops[number], next))
                .with_context(|| format!("link {number} of the way"))?;
        }
        let beyond = subnet(links[2][0]);
        for (number, [_, next]) in links.iter().enumerate().take(2) {
            let (from, down) = way.end(node, number);
            from.ip(&format!("route add {beyond} via {next} dev {down}\n"))?;
        }
        Ok(way)
    }

    pub fn host(&self) -> &NetNs {
        &self.hops[2]
    }

    /// Prepares the first router's interface for an XDP program at the node's end of the link.
    pub fn prepare_for_xdp(&self) -> Result<()> {
        self.hops[0].enter(|| prepare_far_end(TO_NODE))?
    }

    /// Sets the MTU at both ends of a link, in bytes; link 0 is the one at the node.
    pub fn set_mtu(&self, node: &NetNs, link: usize, mtu: u32) -> Result<()> {
        let (from, down) = self.end(node, link);
        from.ip(&format!("link set {down} mtu {mtu}\n"))?;
        self.hops[link].ip(&format!("link set {TO_NODE} mtu {mtu}\n"))
    }

    /// Returns the end of a link that is nearer to the node: its namespace and the interface's
    /// name.
    fn end<'a>(&'a self, node: &'a NetNs, link: usize) -> (&'a NetNs, &'a str) {
        match link.checked_sub(1) {
            None => (node, &self.interface),
            Some(hop) => (&self.hops[hop], TO_HOST),
        }
    }
}

fn join(from: &NetNs, down: &str, this: IpAddr, to: &NetNs, next: IpAddr) -> Result<()> {
    // Both ends need different interface indexes. With the same one, the kernel (6.18) may take a
    // second to notice that a link is up.
    static INDEX: AtomicUsize = AtomicUsize::new(200);
    let index = INDEX.fetch_add(1, Ordering::Relaxed);
    let length = subnet(this).prefix_len();
    from.ip(&format!(
        "link add {down} index {index} type veth peer name {TO_NODE} netns {}\n\
         address add {this}/{length}{} dev {down}\nlink set {down} up\n",
        to.path(),
        nodad(this)
    ))?;
    to.ip(&format!(
        "address add {next}/{length}{} dev {TO_NODE}\nlink set {TO_NODE} up\nroute add default via {this} dev {TO_NODE}\n",
        nodad(next)
    ))
}
