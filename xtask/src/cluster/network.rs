// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The cluster's network namespaces: one with a bridge, and those of the control plane and the
//! nodes, which are connected to the bridge.

use std::{path::Path, process::Command};

use anyhow::{Context, Result};

use super::{
    daemon::run,
    layout::{CONTROL, NODES, Namespace, SWITCH, places},
};
use crate::command;

/// Builds the namespaces. `joins_pods`: the nodes get routes to each other's pods. The control
/// plane always has them.
pub(super) fn build(joins_pods: bool) -> Result<()> {
    ip(&format!("netns add {SWITCH}"))?;
    ip(&format!("-n {SWITCH} link add switch type bridge"))?;
    ip(&format!("-n {SWITCH} link set switch up"))?;
    for place in places() {
        plug(&place)?;
    }
    for place in places().filter(|place| joins_pods || *place == CONTROL) {
        for node in NODES.iter().filter(|node| node.place != place) {
            let (netns, pods, via) = (place.netns(), node.pods, node.place.address);
            ip(&format!("-n {netns} route add {pods} via {via}"))?;
        }
    }
    for node in &NODES {
        let (netns, gateway) = (node.place.netns(), CONTROL.address);
        // Packets to unknown addresses need a route. Their gateway does not forward them.
        ip(&format!("-n {netns} route add default via {gateway}"))?;
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
    let (netns, name, address) = (place.netns(), place.name, place.address);
    ip(&format!("netns add {netns}"))?;
    ip(&format!("-n {netns} link set lo up"))?;
    ip(&format!(
        "-n {SWITCH} link add {name} type veth peer name eth0 netns {netns}"
    ))?;
    ip(&format!("-n {SWITCH} link set {name} master switch up"))?;
    ip(&format!("-n {netns} address add {address}/24 dev eth0"))?;
    ip(&format!("-n {netns} link set eth0 up"))
}

/// Removes the cluster's network namespaces that exist.
pub(super) fn remove() -> Result<()> {
    let names = places().map(|place| place.netns());
    for name in names.chain([SWITCH.to_owned()]) {
        if Path::new("/run/netns").join(&name).exists() {
            ip(&format!("netns delete {name}"))?;
        }
    }
    Ok(())
}

pub(super) fn exists() -> bool {
    Path::new("/run/netns").join(SWITCH).exists()
}

fn ip(words: &str) -> Result<()> {
    run(&mut command::of("ip", words))
        .map(drop)
        .context("set up the cluster's network")
}
