// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Settings with a few alternatives, for `Config`; docs/settings.md says what each value does.

use std::net::IpAddr;

use ipnet::IpNet;
use linux::interfaces::PodInterfaces;

/// kube-proxy's mode. portolan implements none of the modes, but some defaults depend on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, clap::ValueEnum)]
pub enum Mode {
    #[default]
    Iptables,
    Ipvs,
    Nftables,
}

/// The node's addresses on which node ports are served.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NodePortAddresses {
    /// Every address, IPv4 loopback included.
    Every,
    /// The node's InternalIP of each family.
    Primary,
    /// The addresses in the ranges. KUBE: a family without a range has every address.
    Within(Vec<IpNet>),
}

impl NodePortAddresses {
    /// Whether node ports are served on every address of a family, new addresses included.
    pub fn serve_every(&self, v4: bool) -> bool {
        match self {
            Self::Every => true,
            Self::Primary => false,
            Self::Within(ranges) => within(ranges, v4, |range| range.prefix_len() == 0),
        }
    }

    /// Whether node ports are served on an address of the node.
    pub fn serve(&self, address: IpAddr, internal_ips: &[IpAddr]) -> bool {
        // KUBE: the kernel routes no packets from ::1 to other hosts, so it has no node ports.
        if address.is_ipv6() && address.is_loopback() {
            return false;
        }
        match self {
            Self::Every => true,
            Self::Primary => internal_ips.contains(&address),
            Self::Within(ranges) => {
                within(ranges, address.is_ipv4(), |range| range.contains(&address))
            }
        }
    }
}

/// Whether such a range of a family is among these, or none of that family at all.
fn within(ranges: &[IpNet], v4: bool, is_such: impl Fn(&IpNet) -> bool) -> bool {
    let own = ranges.iter().filter(|range| range.addr().is_ipv4() == v4);
    let mut ranges = own.peekable();
    ranges.peek().is_none() || ranges.any(is_such)
}

/// How pods are distinguished from other clients. KUBE: `detectLocalMode`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LocalDetection {
    /// Pods have an address in one of the ranges of `clusterCIDR`.
    ClusterCidr,
    /// Pods have an address in the pod ranges of this node; those of others are other clients.
    NodeCidr,
    /// Packets of pods come in by one of these interfaces.
    Interface(PodInterfaces),
    /// Pods are not distinguished.
    None,
}

/// Whose connections are translated at the socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, clap::ValueEnum)]
pub enum SocketBalancing {
    /// Those of node processes and pods.
    #[default]
    All,
    /// Those of node processes only.
    Host,
}

/// What happens to packets to an address in the ranges of cluster IPs that no service has.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, clap::ValueEnum)]
pub enum UnallocatedClusterIps {
    /// The node's routes decide. KUBE: mode iptables.
    #[default]
    Pass,
    /// They are dropped. KUBE: mode nftables.
    Drop,
}

/// What becomes of connections to an endpoint whose pod is gone.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, clap::ValueEnum)]
pub enum GoneEndpoints {
    /// They are ended: by a reset at the client's next packet, or by closing its socket.
    #[default]
    Reset,
    /// They stay until their ends give them up. KUBE: kube-proxy.
    Keep,
}

/// What replaces the source address of flows that need it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, clap::ValueEnum)]
pub enum Masquerade {
    /// The kernel programs.
    #[default]
    Full,
    /// The node's own netfilter rules, which match the mark on the packet.
    Mark,
}

/// Whether XDP takes packets of known flows at uplinks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, clap::ValueEnum)]
pub enum Xdp {
    #[default]
    Off,
    /// In the device's driver.
    Native,
    /// Behind the driver: with any device, and slower.
    Generic,
}

/// How translated packets leave the node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, clap::ValueEnum)]
pub enum Forwarding {
    /// Through the node's stack, every packet.
    Stack,
    /// Past the stack, where the stack has let packets of the same connection pass.
    #[default]
    #[value(alias = "redirect")]
    Auto,
}
