// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The cluster's network namespaces: one with a bridge, and those of the control plane and the
//! nodes, which are connected to the bridge.

use std::{path::Path, process::Command};

use anyhow::{Context, Result};

use super::{
    daemon::run,
    layout::{CONTROL, NODES, Namespace, SWITCH, places},
};

/// Builds the namespaces. `joins_pods`: the nodes get routes to each other's pods. The control
/// plane always has them.
pub(super) fn build(joins_pods: bool) -> Result<()> {
    ip(&["netns", "add", SWITCH])?;
    in_switch(&["link", "add", "switch", "type", "bridge"])?;
    in_switch(&["link", "set", "switch", "up"])?;
    for place in places() {
        plug(&place)?;
    }
    for place in places().filter(|place| joins_pods || *place == CONTROL) {
        let others = NODES.iter().filter(|node| node.place != place);
        for node in others {
            let via = node.place.address;
            ip(&["-n", &place.netns(), "route", "add", node.pods, "via", via])?;
        }
    }
    for node in &NODES {
        let netns = node.place.netns();
        // Packets to unknown addresses need a route. Their gateway does not forward them.
        let gateway = CONTROL.address;
        ip(&["-n", &netns, "route", "add", "default", "via", gateway])?;
        // kubeadm requires both settings on a node. A kernel without bridge filtering lacks the
        // second one.
        for setting in ["net/ipv4/ip_forward", "net/bridge/bridge-nf-call-iptables"] {
            let set = format!("test ! -e /proc/sys/{setting} || echo 1 > /proc/sys/{setting}");
            let net = format!("--net=/run/netns/{netns}");
            run(Command::new("nsenter").args([&net, "sh", "-c", &set]))?;
        }
    }
    Ok(())
}

fn plug(place: &Namespace) -> Result<()> {
    let netns = place.netns();
    ip(&["netns", "add", &netns])?;
    ip(&["-n", &netns, "link", "set", "lo", "up"])?;
    in_switch(&[
        "link", "add", place.name, "type", "veth", "peer", "name", "eth0", "netns", &netns,
    ])?;
    in_switch(&["link", "set", place.name, "master", "switch", "up"])?;
    let address = format!("{}/24", place.address);
    ip(&["-n", &netns, "address", "add", &address, "dev", "eth0"])?;
    ip(&["-n", &netns, "link", "set", "eth0", "up"])
}

/// Removes the cluster's network namespaces that exist.
pub(super) fn remove() -> Result<()> {
    let names = places().map(|place| place.netns());
    for name in names.chain([SWITCH.to_owned()]) {
        if Path::new("/run/netns").join(&name).exists() {
            ip(&["netns", "delete", &name])?;
        }
    }
    Ok(())
}

pub(super) fn exists() -> bool {
    Path::new("/run/netns").join(SWITCH).exists()
}

fn in_switch(arguments: &[&str]) -> Result<()> {
    ip(&[&["-n", SWITCH], arguments].concat())
}

fn ip(arguments: &[&str]) -> Result<()> {
    run(Command::new("ip").args(arguments))
        .map(drop)
        .context("set up the cluster's network")
}
