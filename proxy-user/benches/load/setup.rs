// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What else a node's network stack does beside serving.

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::support::netns::NetNs;

/// What else the node's network stack does.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, clap::ValueEnum, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Setup {
    /// br_netfilter off, no netfilter rule.
    Bare,
    /// br_netfilter on and conntrack active, without which kube-proxy does not work.
    Netfilter,
}

/// Makes conntrack follow every packet of the node.
const CONNTRACK: &str = "table inet bench {
  chain forward {
    type filter hook forward priority filter
    ct state established,related accept
  }
}
";

impl Setup {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Bare => "bare",
            Self::Netfilter => "netfilter",
        }
    }

    /// Makes a node so, whatever rules it had before.
    pub(crate) fn apply(self, node: &NetNs) -> Result<()> {
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
