// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Settings of nodes, clients and agents for benchmarks.

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::node::{netns::NetNs, settings::Forwarding};

/// What the node's network stack does beside forwarding.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Setup {
    /// br_netfilter off, no netfilter rule.
    Bare,
    /// br_netfilter on and conntrack active, without which kube-proxy does not work.
    Netfilter,
}

/// Kernel parameters of a client with thousands of short connections: it reuses closed ones' ports.
pub const CLIENT_PARAMETERS: [(&str, &str); 2] = [
    ("ipv4/ip_local_port_range", "1024 65535"),
    ("ipv4/tcp_tw_reuse", "1"),
];

/// Returns portolan's configuration. Its maps are large enough for 50 000 services, each with two
/// ports and the map entry for all its other ports, and do not grow while something is measured.
pub fn config(forwarding: Forwarding) -> String {
    let forwarding = forwarding.name();
    format!(
        "portolan: {{maps: {{frontends: 262144, records: 262144, slots: 1048576, backends: 262144, \
         flows: 524288}}, forwarding: {forwarding}}}\n"
    )
}

/// nftables rules that make conntrack follow every packet of the node.
const CONNTRACK: &str = "table inet bench {
  chain forward {
    type filter hook forward priority filter
    ct state established,related accept
  }
}
";

impl Setup {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bare => "bare",
            Self::Netfilter => "netfilter",
        }
    }

    /// Applies these settings to a node. All of the node's other netfilter rules are removed.
    pub fn apply(self, node: &NetNs) -> Result<()> {
        let bridged = if self == Self::Netfilter { "1" } else { "0" };
        node.set(&[("bridge/bridge-nf-call-iptables", bridged)])
            .context("the node's br_netfilter: `modprobe br_netfilter`")?;
        let rules = match self {
            Self::Bare => "flush ruleset\n".to_owned(),
            Self::Netfilter => format!("flush ruleset\n{CONNTRACK}"),
        };
        node.feed("nft", &["-f", "-"], &rules)
            .context("the node's netfilter rules: install nftables")?;
        Ok(())
    }
}
