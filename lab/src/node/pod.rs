// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Joins single hosts and pods to a node, for tests that do not build a complete `topology`.

use std::{
    fmt::Write,
    net::IpAddr,
    sync::atomic::{AtomicU32, Ordering},
};

use anyhow::{Context, Result};

use super::{
    layout::{host, nodad},
    netns::NetNs,
};

/// The pods' gateways: the node has these addresses at every pod's interface.
const GATEWAY_V4: &str = "169.254.1.1";
const GATEWAY_V6: &str = "fe80::1";

/// Joins two hosts by a pair of interfaces, and sets them up. Each end is its interface's name, and
/// then its addresses with their lengths: `eth0 192.0.2.1/24 2001:db8::1/64`.
pub fn wire(here: &NetNs, end: &str, there: &NetNs, far_end: &str) -> Result<()> {
    // Both ends need different interface indexes. With the same one, the kernel (6.18) may take a
    // second to notice that a link is up.
    static INDEX: AtomicU32 = AtomicU32::new(2000);
    let index = INDEX.fetch_add(1, Ordering::Relaxed);
    let [(name, addresses), (far_name, far_addresses)] =
        [end, far_end].map(|end| end.split_once(' ').unwrap_or((end, "")));
    here.ip(&format!(
        "link add {name} index {index} type veth peer name {far_name} netns {}\n",
        there.path()
    ))?;
    for (host, name, addresses) in [(here, name, addresses), (there, far_name, far_addresses)] {
        let mut script = String::from("link set lo up\n");
        for address in addresses.split_whitespace() {
            let nodad = if address.contains(':') { " nodad" } else { "" };
            writeln!(script, "address add {address}{nodad} dev {name}")?;
        }
        writeln!(script, "link set {name} up")?;
        host.ip(&script)?;
    }
    Ok(())
}

/// Joins a pod with these addresses to a node by a veth pair and host routes, as routing CNIs do.
pub fn plug(node: &NetNs, pod: &NetNs, addresses: &[&str]) -> Result<()> {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let interface = format!("pod{number}");
    node.ip(&format!(
        "link add {interface} type veth peer name eth0 netns {}\n",
        pod.path()
    ))?;
    join(node, &interface, pod, addresses, 1500)
}

/// Sets up a pair of interfaces that exists: `interface` in the node, and eth0 in the pod.
pub fn join(node: &NetNs, interface: &str, pod: &NetNs, ips: &[&str], mtu: u32) -> Result<()> {
    let parse = |ip: &&str| ip.parse::<IpAddr>().with_context(|| String::from(*ip));
    let addresses: Vec<_> = ips.iter().map(parse).collect::<Result<_>>()?;
    let v4 = addresses.iter().any(IpAddr::is_ipv4).then_some(GATEWAY_V4);
    let v6 = addresses.iter().any(IpAddr::is_ipv6).then_some(GATEWAY_V6);
    let mut outside = String::new();
    let mut inside = String::from("link set lo up\n");
    if let Some(gateway) = v4 {
        writeln!(outside, "address add {gateway}/32 dev {interface}")?;
    }
    if let Some(gateway) = v6 {
        writeln!(outside, "address add {gateway}/64 dev {interface} nodad")?;
    }
    for address in &addresses {
        let (ip, nodad) = (host(*address), nodad(*address));
        writeln!(inside, "address add {ip}{nodad} dev eth0")?;
    }
    writeln!(outside, "link set {interface} mtu {mtu} up")?;
    writeln!(inside, "link set eth0 mtu {mtu} up")?;
    for address in &addresses {
        // A pod that had the address may be about to go.
        writeln!(outside, "route replace {} dev {interface}", host(*address))?;
    }
    if let Some(gateway) = v4 {
        writeln!(inside, "route add {gateway}/32 dev eth0")?;
    }
    for gateway in v4.into_iter().chain(v6) {
        writeln!(inside, "route add default via {gateway} dev eth0")?;
    }
    node.ip(&outside)?;
    pod.ip(&inside)
}
