// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Calls the CNI plugin `bandwidth` for a pod's interface, as a container runtime does.

use std::path::Path;

use anyhow::{Result, ensure};
use serde_json::json;

use super::netns::NetNs;

/// Path of the plugin in Debian's package.
const PLUGIN: &str = "/usr/lib/cni/bandwidth";
/// How many bits may pass at once, faster than the rate.
const BURST: u32 = 640_000;

/// Limits a pod's traffic to `rate` bits a second in each direction. The pod's interface is `eth0`;
/// `interface` is its other end, at the node. The limits vanish with the namespaces.
pub fn limit_bandwidth(node: &NetNs, interface: &str, pod: &NetNs, rate: u32) -> Result<()> {
    ensure!(
        Path::new(PLUGIN).exists(),
        "{PLUGIN} is missing: run `cargo xtask setup`, or install containernetworking-plugins"
    );
    let config = json!({
        "cniVersion": "0.4.0", "name": "limits", "type": "bandwidth",
        "ingressRate": rate, "ingressBurst": BURST, "egressRate": rate, "egressBurst": BURST,
        "prevResult": {
            "cniVersion": "0.4.0",
            "interfaces": [{"name": interface}, {"name": "eth0", "sandbox": pod.path()}],
            "ips": [],
        },
    });
    let namespace = format!("CNI_NETNS={}", pod.path());
    let container = format!("CNI_CONTAINERID={}", pod.name());
    let words = [
        "CNI_COMMAND=ADD",
        &container,
        &namespace,
        "CNI_IFNAME=eth0",
        "CNI_PATH=/usr/lib/cni",
        PLUGIN,
    ];
    node.feed("env", &words, &config.to_string()).map(drop)
}
