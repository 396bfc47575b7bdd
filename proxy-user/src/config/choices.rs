// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The values of settings that choose between a few ways. Part of `Config`.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::interfaces::PodInterfaces;

/// On which of the node's addresses node ports are served.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NodePortAddresses {
    /// Every one, IPv4 loopback included.
    Every,
    /// The InternalIP of each family.
    Primary,
    /// Those in the ranges. KUBE: a family without a range has every one.
    Within(Vec<IpNet>),
}

impl NodePortAddresses {
    /// Whether node ports are served on an address of the node.
    pub fn serve(&self, address: IpAddr, internal_ips: &[IpAddr]) -> bool {
        // KUBE: the kernel routes nothing from ::1 to elsewhere, so node ports are not served on it.
        if address.is_ipv6() && address.is_loopback() {
            return false;
        }
        match self {
            Self::Every => true,
            Self::Primary => internal_ips.contains(&address),
            Self::Within(ranges) => {
                let mut of_family = ranges
                    .iter()
                    .filter(|range| range.addr().is_ipv4() == address.is_ipv4())
                    .peekable();
                of_family.peek().is_none() || of_family.any(|range| range.contains(&address))
            }
        }
    }
}

/// How pods are told from other clients. KUBE: `detectLocalMode`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LocalDetection {
    /// They have an address in the cluster's pod ranges.
    ClusterCidr,
    /// They have an address in the pod ranges of this node's object: other nodes' pods are other clients.
    NodeCidr,
    /// Their packets come by one of these interfaces.
    Interface(PodInterfaces),
    None,
}

/// Whose connections are translated at the socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, clap::ValueEnum)]
pub enum SocketBalancing {
    /// Node processes' and pods'.
    #[default]
    All,
    /// Node processes' only.
    Host,
}

/// What becomes of what is sent to an address that cluster IPs are allocated from and no service has.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, clap::ValueEnum)]
pub enum UnallocatedClusterIps {
    /// It goes where the node's routes send it. KUBE: mode iptables.
    #[default]
    Pass,
    /// KUBE: mode nftables.
    Drop,
}

/// Who replaces the source address of flows that need it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, clap::ValueEnum)]
pub enum Masquerade {
    #[default]
    Full,
    /// The node's own rules, which find the mark on the packet.
    Mark,
}

/// How translated packets leave the node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, clap::ValueEnum)]
pub enum Forwarding {
    /// By the node's stack, whose filters apply.
    #[default]
    Stack,
    /// At once, by the kernel's routes and neighbours, past the stack and its filters.
    Redirect,
}
