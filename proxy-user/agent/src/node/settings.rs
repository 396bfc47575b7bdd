// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Makes the node's settings and addresses for the maps from the configuration, the Node object and
//! the interfaces. Returns plain values and warnings. Pure.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use config::{Config, LocalDetection, UnallocatedClusterIps, set_allocated, set_pods};
use control::{
    model::{Node, parse},
    object::Warning,
};
use datapath::NodeAddress;
use ipnet::IpNet;
use linux::interfaces::{Interface, InterfaceKind};
use proxy_common::{
    Settings,
    carried::{KEYS, Key},
    settings::RANGES,
};

/// The node's settings and addresses, as they are stored in the maps.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct NodeSettings {
    pub(super) settings: Settings,
    /// The node's addresses, sorted, each once.
    pub(super) addresses: Vec<NodeAddress>,
    pub(super) header_keys: [Key; KEYS as usize],
}

impl NodeSettings {
    pub(super) fn new(
        config: &Config,
        netns: u64,
        node: Option<&Node>,
        service_ranges: &BTreeSet<IpNet>,
        internal_ips: &[IpAddr],
        interfaces: &[Interface],
    ) -> Self {
        let mut settings = Settings {
            node_netns: netns,
            ..config.settings()
        };
        if config.local_detection == LocalDetection::NodeCidr {
            set_pods(&mut settings, node.map_or(&[], |node| &node.pod_ranges));
        }
        if config.unallocated_cluster_ips == UnallocatedClusterIps::Drop {
            let ranges: Vec<_> = service_ranges.iter().copied().collect();
            set_allocated(&mut settings, &ranges);
        }
        for ip in internal_ips {
            match ip {
                IpAddr::V4(v4) => settings.internal_v4 = (*v4).into(),
                IpAddr::V6(v6) => settings.internal_v6 = (*v6).into(),
            }
        }
        let addresses = own_addresses(config, interfaces).into_iter();
        let addresses = addresses.map(|address| NodeAddress {
            address,
            node_ports: config.serves_node_ports(address, internal_ips),
        });
        Self {
            settings,
            addresses: addresses.collect(),
            header_keys: Default::default(),
        }
    }
}

/// Returns the addresses at which health check node ports are answered; an unspecified address
/// means every address of its family. KUBE: they are answered where node ports are served.
pub(super) fn health_check_addresses(config: &Config, node: &[NodeAddress]) -> BTreeSet<IpAddr> {
    let every = |ip: IpAddr| config.node_port_addresses.serve_every(ip.is_ipv4());
    // A socket can be bound to a link-local IPv6 address only together with its interface.
    let alone = |ip: &IpAddr| ip.is_ipv4() || parse::flaw(*ip) != Some(parse::LINK_LOCAL);
    let named = node.iter().filter(|one| one.node_ports);
    let named = named.map(|one| one.address).filter(alone);
    [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()]
        .into_iter()
        .filter(|ip| every(*ip))
        .chain(named.filter(|ip| !every(*ip)))
        .collect()
}

/// Returns the addresses at which processes of this node itself answer. Packets to them stay with
/// these processes, even if an address is a cluster IP.
pub(super) fn own_addresses(config: &Config, interfaces: &[Interface]) -> BTreeSet<IpAddr> {
    interfaces
        .iter()
        .flat_map(addresses_of_node)
        .chain(config.own_addresses.iter().copied())
        .collect()
}

/// Returns the broadcast addresses of the node's subnets. The kernel has one for each prefix of at
/// most 30 bits.
pub(super) fn broadcasts(interfaces: &[Interface]) -> BTreeSet<IpAddr> {
    let nets = interfaces.iter().flat_map(|interface| &interface.addresses);
    let nets = nets.filter(|net| net.addr().is_ipv4() && net.prefix_len() <= 30);
    nets.map(IpNet::broadcast).collect()
}

/// Returns a warning if there are more service ranges than the settings in the maps can contain.
pub(super) fn unheld_ranges(config: &Config, service_ranges: &BTreeSet<IpNet>) -> Option<Warning> {
    if config.unallocated_cluster_ips == UnallocatedClusterIps::Pass {
        return None;
    }
    let of_family = |v4: bool| {
        let ranges = service_ranges.iter();
        ranges.filter(move |range| range.addr().is_ipv4() == v4)
    };
    let unheld: Vec<_> = of_family(true)
        .skip(RANGES)
        .chain(of_family(false).skip(RANGES))
        .map(ToString::to_string)
        .collect();
    (!unheld.is_empty()).then(|| Warning {
        object: "ServiceCIDR".to_owned(),
        reason: format!(
            "there are more than {RANGES} ranges of a family; packets to cluster IPs in {} that no service has are routed and not dropped; use fewer, larger ranges",
            unheld.join(", "),
        ),
    })
}

/// Returns the node's addresses at an interface. KUBE: every local address is the node's. Leaves
/// out the link-local addresses of pods' interfaces: there is one per pod, and no client uses them
/// for node ports. Also leaves out the cluster IPs on the interface of IPVS.
fn addresses_of_node(interface: &Interface) -> impl Iterator<Item = IpAddr> + '_ {
    let of_pod = matches!(
        interface.kind,
        InterfaceKind::PodSide | InterfaceKind::BridgePort
    );
    let addresses = interface.addresses.iter().map(|net| net.addr());
    let of_services = interface.is_of_ipvs();
    addresses
        .filter(move |ip| !(of_services || of_pod && parse::flaw(*ip) == Some(parse::LINK_LOCAL)))
}

/// Returns an address for each family for which the Node object has no InternalIP: the configured
/// one, or else the first global address of the interfaces, in their order. Returns a warning only
/// if the Node object has no InternalIP at all and none is configured: with one InternalIP, the
/// node has a single family in Kubernetes.
pub(super) fn fallback_ips(
    node_name: &str,
    node: Option<&Node>,
    configured: &[IpAddr],
    interfaces: &[Interface],
) -> (Vec<IpAddr>, Option<Warning>) {
    let named = [
        node.and_then(|node| node.internal_v4).is_some(),
        node.and_then(|node| node.internal_v6).is_some(),
    ];
    let mut ips = Vec::new();
    let mut guessed = Vec::new();
    for (v4, named) in [true, false].into_iter().zip(named) {
        if named {
            continue;
        }
        if let Some(given) = configured.iter().find(|ip| ip.is_ipv4() == v4) {
            ips.push(*given);
            continue;
        }
        let first = interfaces.iter().find_map(|interface| {
            let addresses = interface.addresses.iter().map(|net| net.addr());
            let mut fitting =
                addresses.filter(|ip| ip.is_ipv4() == v4 && parse::flaw(*ip).is_none());
            fitting.next().map(|ip| (ip, interface))
        });
        if let Some((ip, interface)) = first {
            ips.push(ip);
            guessed.push(format!("{ip} of {}", interface.name));
        }
    }
    let unknown = named == [false; 2] && configured.is_empty();
    let warning = unknown.then(|| Warning {
        object: format!("Node {node_name}"),
        reason: match &guessed[..] {
            [] => "no InternalIP is known and no interface has a global address, so nothing can be masqueraded; name it in the Node object or with --node-ip".to_owned(),
            guessed => format!(
                "no InternalIP is known, so {} is taken; name it in the Node object or with --node-ip",
                guessed.join(" and "),
            ),
        },
    });
    (ips, warning)
}

#[cfg(test)]
pub(super) mod tests;
