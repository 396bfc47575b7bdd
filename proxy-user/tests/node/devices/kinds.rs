// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The kinds of interfaces between a client, a node, its pods and another node. In the commands of
//! iproute2, a lane replaces these words: UPLINK and TUNNEL by names of interfaces, PAIR0 and PAIR1
//! by those of two pairs between node and client, OWN and OTHER by the addresses of the two nodes.

use anyhow::{Context, Result};
use rtnetlink::{LinkNetkit, new_connection, packet_route::link::NetkitMode};
use tokio::runtime::Builder;

/// A line for each kind, with the fields of [`Kind`].
pub(super) const VXLAN: &str = "vxlan | 46 | 1450 | nothing | PAIR \
| link add TUNNEL type vxlan id 7 dstport 4789 local OWN remote OTHER";

/// Kinds that need kernel modules. Tunnels without a link layer get their packets from the stack.
pub(super) const OF_MODULES: &str = include_str!("of_modules.txt");

/// Interfaces of pods in mode L3 have no link-layer address.
pub(super) const NETKIT: &str = "\
netkit L2 | 46 | 1500 | nothing | PAIR |
netkit L3 | 46 | 1500 | into pods | PAIR |";

#[derive(Clone, Copy)]
pub(super) struct Kind<'a> {
    /// With `netkit`, the pods are joined by netkit pairs, else by veth pairs.
    pub(super) name: &'a str,
    /// Whether the lane carries IPv6 packets.
    pub(super) v6: bool,
    /// The MTU of the pods' interfaces and of the tunnel, in bytes.
    pub(super) mtu: u32,
    /// The packets that pass the node's stack even with `forwarding: auto`.
    by_stack: &'a str,
    /// Makes the interface towards the outside, at both of its ends.
    pub(super) uplink: &'a str,
    /// Makes an end of the tunnel that encapsulates packets between the nodes over IPv4. Empty: the
    /// nodes have routes to each other's pods.
    pub(super) tunnel: &'a str,
}

/// The kinds of these lines.
pub(super) fn kinds(lines: &str) -> impl Iterator<Item = Kind<'_>> {
    lines.lines().map(|line| {
        let fields: Vec<_> = line.split('|').map(str::trim).collect();
        let [name, families, mtu, by_stack, uplink, tunnel] = fields[..] else {
            panic!("six fields: {line}")
        };
        Kind {
            name,
            v6: families == "46",
            mtu: mtu.parse().expect("bytes"),
            by_stack,
            uplink: match uplink {
                "PAIR" => "link set PAIR0 down; link set PAIR0 name UPLINK",
                commands => commands,
            },
            tunnel,
        }
    })
}

impl Kind<'_> {
    /// Whether packets of one direction of a flow pass the stack.
    pub(super) fn needs_stack(&self, from_outside: bool, to_near_pod: bool) -> bool {
        match self.by_stack {
            "into the tunnel" => !(from_outside && to_near_pod),
            "into pods" => !from_outside || to_near_pod,
            _ => false,
        }
    }
}

/// Makes a netkit pair in the thread's network namespace. iproute2 can do this since 6.7.
pub(super) fn netkit(interface: &str, peer: &str, mode: &str) -> Result<()> {
    let mode = match mode {
        "L2" => NetkitMode::L2,
        _ => NetkitMode::L3,
    };
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let made = runtime.block_on(async {
        let (connection, handle, _) = new_connection()?;
        tokio::spawn(connection);
        let link = LinkNetkit::new(interface, peer, mode).build();
        handle.link().add(link).execute().await?;
        anyhow::Ok(())
    });
    made.context("make a netkit pair")
}
