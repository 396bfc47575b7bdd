// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Derives the settings of the kernel programs and the interface patterns from the configuration.
//! Used by `agent`.

use std::net::IpAddr;

use datapath::{XdpMode, maps::family::Family};
use ipnet::IpNet;
use linux::{UNACKNOWLEDGED, interfaces::Patterns};
use proxy_common::{Prefix, Settings, settings::RANGES};

use super::{
    Config, Conntrack, Forwarding, LocalDetection, Masquerade, Mode, SocketBalancing, Xdp,
};

impl Config {
    /// Returns the settings of the kernel programs, without the node's addresses.
    pub fn settings(&self) -> Settings {
        let mut settings = Settings {
            masquerade_ports: self.masquerade_ports,
            ..Settings::EMPTY
        };
        for (is_set, flag) in [
            (self.masquerade_all, Settings::MASQUERADE_ALL),
            (self.masquerade == Masquerade::Mark, Settings::MARK_ONLY),
            (
                self.socket_balancing == SocketBalancing::All,
                Settings::POD_SOCKETS,
            ),
            (
                !self.socket_exceptions.is_empty(),
                Settings::SOCKET_EXCEPTIONS,
            ),
            (self.reserve_node_ports, Settings::RESERVE_NODE_PORTS),
            (self.answer_ping, Settings::ANSWER_PING),
        ] {
            settings.flags |= if is_set { flag } else { 0 };
        }
        match &self.local_detection {
            LocalDetection::ClusterCidr => set_pods(&mut settings, &self.cluster_cidr),
            // `agent` adds the ranges when it has read the Node object.
            LocalDetection::NodeCidr => set_pods(&mut settings, &[]),
            LocalDetection::Interface(_) => {
                settings.flags |= Settings::DETECTS_PODS | Settings::PODS_BY_INTERFACE;
            }
            LocalDetection::None => {}
        }
        settings
    }

    /// Returns the node's own address. KUBE: `bindAddress`; None if this is unspecified (0.0.0.0 or
    /// ::).
    pub fn bound_ip(&self) -> Option<IpAddr> {
        Some(self.bind_address).filter(|address| !address.is_unspecified())
    }

    /// True if node ports are served on this address of the node.
    pub fn serves_node_ports(&self, address: IpAddr, internal_ips: &[IpAddr]) -> bool {
        // KUBE: mode nftables has no `localhostNodePorts`.
        let is_refused = !self.localhost_node_ports && self.mode != Mode::Nftables;
        if is_refused && address.is_loopback() {
            return false;
        }
        let bound = self.bound_ip();
        let is_named = |ip: &&IpAddr| bound.is_none_or(|bound| bound.is_ipv4() != ip.is_ipv4());
        let primary: Vec<_> = internal_ips
            .iter()
            .filter(is_named)
            .copied()
            .chain(bound)
            .collect();
        self.node_port_addresses.serve(address, &primary)
    }

    /// Returns how XDP takes packets at uplinks; None if it does not. It does so only with
    /// `forwarding: auto`, whose records say what the network stack lets pass.
    pub fn xdp_mode(&self) -> Option<XdpMode> {
        if self.forwarding == Forwarding::Stack {
            return None;
        }
        match self.xdp {
            Xdp::Off => None,
            Xdp::Native => Some(XdpMode::Native),
            Xdp::Generic => Some(XdpMode::Generic),
        }
    }

    /// Returns what `portolan init` sets of the node's nf_conntrack. With `forwarding: auto`,
    /// nf_conntrack sees only a part of a connection's segments, and must accept those that it does
    /// see.
    pub fn node_conntrack(&self) -> Conntrack {
        let mut conntrack = self.conntrack.clone();
        if self.forwarding == Forwarding::Auto {
            conntrack.tcp_be_liberal = true;
            let established = conntrack.tcp_established.unwrap_or(u32::MAX);
            conntrack.tcp_unacknowledged = Some(established.min(UNACKNOWLEDGED));
        }
        conntrack
    }

    /// Returns the name patterns that select interfaces.
    pub fn interface_patterns(&self) -> Patterns {
        Patterns {
            attach: self.interfaces.clone(),
            xdp: self.xdp_interfaces.clone(),
            pods: match &self.local_detection {
                LocalDetection::Interface(pods) => Some(pods.clone()),
                _ => None,
            },
        }
    }
}

/// Makes the kernel programs recognise pods by these ranges. Ranges of a family beyond the first
/// [`RANGES`] are ignored.
///
/// KUBE: a family without a range does not distinguish pods. If there is no range at all, both
/// families do, because there are no pods yet.
pub fn set_pods(settings: &mut Settings, ranges: &[IpNet]) {
    let has = |v4| ranges.is_empty() || ranges.iter().any(|range| range.addr().is_ipv4() == v4);
    settings.flags &= !Settings::DETECTS_PODS;
    if has(true) {
        settings.flags |= Settings::DETECTS_PODS_V4;
    }
    if has(false) {
        settings.flags |= Settings::DETECTS_PODS_V6;
    }
    fill(&mut settings.pods_v4, ranges);
    fill(&mut settings.pods_v6, ranges);
}

/// Makes the kernel programs drop packets to addresses in these ranges that belong to no service.
/// Ranges of a family beyond the first [`RANGES`] are ignored.
pub fn set_allocated(settings: &mut Settings, ranges: &[IpNet]) {
    fill(&mut settings.allocated_v4, ranges);
    fill(&mut settings.allocated_v6, ranges);
}

fn fill<A: Family>(all: &mut [Prefix<A>; RANGES], ranges: &[IpNet]) {
    let own = ranges.iter().filter_map(|range| A::prefix(*range));
    all.iter_mut().zip(own).for_each(|(to, from)| *to = from);
}
