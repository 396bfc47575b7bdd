// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Derives from the configuration, for `agent` and `cli::init`, the kernel programs' settings, the
//! interface patterns, and the parameters that kube-proxy sets for the node's nf_conntrack.

use std::net::IpAddr;

use datapath::{XdpMode, maps::family::Family};
use ipnet::IpNet;
use linux::{UNACKNOWLEDGED, interfaces::Patterns};
use proxy_common::{Prefix, Settings, settings::RANGES};

use super::{Config, Forwarding, LocalDetection, Masquerade, Mode, SocketBalancing, Xdp};

impl Config {
    /// Returns the settings of the kernel programs, without the node's addresses.
    pub fn settings(&self) -> Settings {
        let mut settings = Settings {
            masquerade_ports: self.masquerade_ports,
            ..Settings::EMPTY
        };
        let of_pods = self.socket_balancing == SocketBalancing::All;
        let has_exceptions = !self.socket_exceptions.is_empty();
        for (is_set, flag) in [
            (self.masquerade_all, Settings::MASQUERADE_ALL),
            (self.masquerade == Masquerade::Mark, Settings::MARK_ONLY),
            (of_pods, Settings::POD_SOCKETS),
            (has_exceptions, Settings::SOCKET_EXCEPTIONS),
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

    /// Returns the node's own address. KUBE: `bindAddress`; None if this is 0.0.0.0 or ::.
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
        let named = internal_ips.iter().filter(is_named).copied();
        let primary: Vec<_> = named.chain(bound).collect();
        self.node_port_addresses.serve(address, &primary)
    }

    /// Returns how XDP takes packets at uplinks; None if it does not. It does so only with
    /// `forwarding: auto`, whose records say what the network stack lets pass.
    pub fn xdp_mode(&self) -> Option<XdpMode> {
        match self.xdp {
            _ if self.forwarding == Forwarding::Stack => None,
            Xdp::Off => None,
            Xdp::Native => Some(XdpMode::Native),
            Xdp::Generic => Some(XdpMode::Generic),
        }
    }

    /// Returns what `portolan init` sets of the node's nf_conntrack. With `forwarding: auto`,
    /// nf_conntrack sees only a part of a connection's segments, and must accept those.
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

/// KUBE: the upper limit of `maxPerCore` multiplied by the number of processors.
const MOST: u64 = 1_048_576;

/// The settings of the section `conntrack` that are about the node's nf_conntrack.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Conntrack {
    /// Connections in nf_conntrack's table per processor; 0 leaves the size of the table unchanged.
    pub max_per_core: u32,
    pub min: u32,
    pub tcp_be_liberal: bool,
    /// Timeout in seconds; None leaves it unchanged. This also applies to the timeouts below.
    pub tcp_established: Option<u32>,
    pub tcp_close_wait: Option<u32>,
    /// How long a connection is kept while no acknowledgement of its data is seen. kube-proxy has
    /// no such setting; only for `forwarding: auto`: see [`linux::UNACKNOWLEDGED`].
    pub tcp_unacknowledged: Option<u32>,
    pub udp: Option<u32>,
    pub udp_stream: Option<u32>,
}

impl Default for Conntrack {
    fn default() -> Self {
        Self {
            max_per_core: 32_768,
            min: 131_072,
            tcp_be_liberal: false,
            tcp_established: Some(24 * 3600),
            tcp_close_wait: Some(3600),
            tcp_unacknowledged: None,
            udp: None,
            udp_stream: None,
        }
    }
}

impl Conntrack {
    /// Returns the maximum number of connections in nf_conntrack's table; None leaves it unchanged.
    ///
    /// KUBE: `getConntrackMax` of Kubernetes 1.36.
    pub fn max(&self, processors: u32) -> Option<u32> {
        if self.max_per_core == 0 {
            return None;
        }
        let scaled = u64::from(self.max_per_core) * u64::from(processors);
        let wanted = match scaled > MOST {
            true => MOST,
            false => scaled.max(self.min.into()),
        };
        u32::try_from(wanted).ok().filter(|max| *max > 0)
    }

    /// Returns names below `/proc/sys/net/netfilter` and the values to write, in kube-proxy's
    /// order. Parameters to leave unchanged are left out.
    pub fn parameters(&self, processors: u32) -> Vec<(&'static str, u32)> {
        let liberal = self.tcp_be_liberal.then_some(1);
        let unacknowledged = self.tcp_unacknowledged;
        // The sequence number of a reset may be far from the last one that conntrack has seen.
        let any_reset = unacknowledged.map(|_| 1);
        let all = [
            ("nf_conntrack_max", self.max(processors)),
            ("nf_conntrack_tcp_timeout_established", self.tcp_established),
            ("nf_conntrack_tcp_timeout_close_wait", self.tcp_close_wait),
            ("nf_conntrack_tcp_be_liberal", liberal),
            ("nf_conntrack_tcp_timeout_unacknowledged", unacknowledged),
            ("nf_conntrack_tcp_ignore_invalid_rst", any_reset),
            ("nf_conntrack_udp_timeout", self.udp),
            ("nf_conntrack_udp_timeout_stream", self.udp_stream),
        ];
        let given = |(name, value): (_, Option<u32>)| Some((name, value?));
        all.into_iter().filter_map(given).collect()
    }
}

#[cfg(test)]
mod tests {
    use control::testing::rows;

    use super::super::RawConfig;

    /// The section `conntrack`, the number of processors, and what is set, without `nf_conntrack_`.
    const PARAMETERS: &str = include_str!("tests/conntrack.txt");

    #[test]
    fn conntrack_parameters_are_set_as_by_kube_proxy() {
        for [section, processors, expected] in rows(PARAMETERS) {
            let text = format!("conntrack: {section}\n");
            let config = RawConfig::parse_part("f", &text).and_then(RawConfig::check);
            let conntrack = config.expect("valid").conntrack;
            let found = conntrack.parameters(processors.parse().expect("a number"));
            let found = found.iter().map(|(name, value)| format!("{name}={value}"));
            let found = Vec::from_iter(found).join(" ").replace("nf_conntrack_", "");
            assert_eq!(found, expected, "{section}");
        }
    }
}
