// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Finds settings that contradict the node or the cluster, so that no client is served or no pod
//! recognised. Gets the configuration, addresses and objects; returns warnings with a remedy. Pure;
//! called by `agent` and `portolan check`.

use std::{collections::BTreeSet, net::IpAddr};

use config::{Config, LocalDetection, NodePortAddresses, SocketBalancing};
use control::{
    model::{Node, parse},
    object::{ObjectName, Warning},
    tracker::ClusterState,
};
use ipnet::IpNet;
use linux::interfaces::Interface;

use super::settings;

/// Warns of each IP family whose node ports are served at no address of the node, although the node
/// has addresses of that family.
pub fn unserved_node_ports(
    config: &Config,
    internal_ips: &[IpAddr],
    interfaces: &[Interface],
) -> Vec<Warning> {
    let own = settings::own_addresses(config, interfaces);
    let of_family = |(v4, family)| {
        if config.node_port_addresses.serve_every(v4) {
            return None;
        }
        let of_family = |ip: &&IpAddr| ip.is_ipv4() == v4;
        let setting = match &config.node_port_addresses {
            NodePortAddresses::Within(ranges) => {
                let ranges = ranges.iter().filter(|range| range.addr().is_ipv4() == v4);
                format!("no address of this node is in {}", joined(ranges))
            }
            _ => {
                // If the node has no InternalIP, another warning says so.
                let ip = config.bound_ip().filter(|ip| ip.is_ipv4() == v4);
                let ip = ip.or_else(|| internal_ips.iter().copied().find(|ip| of_family(&ip)))?;
                format!("no interface of this node has {ip}, its primary address")
            }
        };
        let mut served = own.iter().filter(of_family);
        if served.any(|ip| config.serves_node_ports(*ip, internal_ips)) {
            return None;
        }
        let others: Vec<_> = own
            .iter()
            .filter(of_family)
            .filter(|ip| parse::flaw(**ip).is_none())
            .collect();
        (!others.is_empty()).then(|| Warning {
            object: "nodePortAddresses".to_owned(),
            reason: format!(
                "{setting}, so {family} node ports are served nowhere on it; name a range with an address of it, which are {}",
                joined(others.into_iter().take(NAMED)),
            ),
        })
    };
    let families = [(true, "IPv4"), (false, "IPv6")].into_iter();
    families.filter_map(of_family).collect()
}

/// Warns of each interface with an address that gets no programs because of its kind.
pub fn unserved_interfaces(interfaces: &[Interface]) -> impl Iterator<Item = Warning> {
    let unserved = interfaces.iter().filter(|one| one.unserved);
    unserved.map(|one| Warning {
        object: format!("interface {}", one.name),
        reason: format!(
            "services are not served to clients behind it: its kind{}{} is none that portolan's programs can read; exclude it by portolan.interfaces ('!{}') if no client is there",
            if one.driver.is_empty() { "" } else { " " },
            one.driver,
            one.name,
        ),
    })
}

/// Returns a warning if conntrack sees requests between pods of one bridge, which are routed, and
/// not their replies, which the bridge forwards. `misses_bridges`:
/// [`linux::conntrack_misses_bridges`].
pub fn half_seen(
    config: &Config,
    interfaces: &[Interface],
    misses_bridges: bool,
) -> Option<Warning> {
    let by_packets = config.socket_balancing == SocketBalancing::Host;
    let has_ports = interfaces.iter().any(|one| one.veth_port && one.attach);
    (by_packets && has_ports && misses_bridges).then(|| Warning {
        object: "socketBalancing".to_owned(),
        reason: "with host, a pod's request to a service with an endpoint at the same bridge is routed, and the reply is bridged, where conntrack does not see it: a rule in FORWARD that drops what is invalid ends such connections; load br_netfilter and set net.bridge.bridge-nf-call-iptables to 1, as kube-proxy needs it, or set portolan.socketBalancing: all".to_owned(),
    })
}

/// How many addresses a warning lists at most.
const NAMED: usize = 8;

/// Returns the address ranges by which pods are recognised; none if `local_detection` works
/// otherwise.
pub fn pod_ranges(config: &Config) -> &[IpNet] {
    match config.local_detection {
        LocalDetection::ClusterCidr => &config.cluster_cidr,
        _ => &[],
    }
}

/// Returns a warning if no pod can be recognised, or if the pods' address ranges contain addresses
/// of services. `cluster` must know [`pod_ranges`] and every object.
pub fn misjudged_pods(config: &Config, node_name: &str, cluster: &ClusterState) -> Option<Warning> {
    let (node, service_ranges) = (cluster.node(), cluster.service_ranges());
    judge_pods(
        config,
        node_name,
        node,
        &service_ranges,
        cluster.in_pod_ranges.as_ref(),
    )
}

fn judge_pods(
    config: &Config,
    node_name: &str,
    node: Option<&Node>,
    service_ranges: &BTreeSet<IpNet>,
    within: Option<&(ObjectName, IpAddr)>,
) -> Option<Warning> {
    if config.local_detection == LocalDetection::NodeCidr
        && node.is_none_or(|node| node.pod_ranges.is_empty())
    {
        return Some(Warning {
            object: "detectLocalMode".to_owned(),
            reason: format!(
                "NodeCIDR recognises pods by spec.podCIDRs of Node {node_name}, which has none, so all pods count as clients outside the cluster; have podCIDRs allocated (kube-controller-manager's --allocate-node-cidrs), or set detectLocalMode: ClusterCIDR and clusterCIDR to the pods' ranges"
            ),
        });
    }
    let pods = pod_ranges(config);
    let overlaps = |range: &&IpNet| {
        let both = |pods: &IpNet| pods.contains(*range) || range.contains(pods);
        pods.iter().any(both)
    };
    let what = match (service_ranges.iter().find(overlaps), within) {
        (Some(range), _) => format!("the service range {range}"),
        (None, Some((service, ip))) => format!("{ip}, the cluster IP of Service {service}"),
        (None, None) => return None,
    };
    Some(Warning {
        object: "clusterCIDR".to_owned(),
        reason: format!(
            "{} overlaps with {what}: no pod has an address there, and pods elsewhere count as clients outside the cluster; set clusterCIDR to the pods' ranges alone",
            joined(pods),
        ),
    })
}

fn joined<T: ToString>(all: impl IntoIterator<Item = T>) -> String {
    let all: Vec<_> = all.into_iter().map(|one| one.to_string()).collect();
    all.join(", ")
}

#[cfg(test)]
mod tests {
    use super::super::settings::tests::{config, interfaces, ips, node};
    use super::*;
    use control::{
        model::Kind,
        testing::{Cluster, service},
    };

    fn node_ports(setting: &str, internal_ips: &[&str]) -> Vec<String> {
        let config = config(&format!("nodePortAddresses: [{setting}]\n"));
        let about = unserved_node_ports(&config, &ips(internal_ips), &interfaces());
        about.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn node_ports_served_at_no_address_give_a_warning_for_each_family() {
        const V4: &str = "so IPv4 node ports are served nowhere on it; name a range with an address of it, which are 192.168.40.2, 192.168.41.2";
        const V6: &str = "so IPv6 node ports are served nowhere on it; name a range with an address of it, which are fd00:c0::2";
        for served in ["", "127.0.0.0/8", "192.168.41.0/24,10.0.0.0/8", "primary"] {
            assert_eq!(node_ports(served, &[]), [""; 0]);
        }
        assert_eq!(
            node_ports("primary", &["192.168.40.2", "fd00:c0::2"]),
            [""; 0]
        );
        let no = "nodePortAddresses: no address of this node is in";
        let of_v4 = format!("{no} 10.0.0.0/8, 172.16.0.0/12, {V4}");
        let of_v6 = format!("{no} 2001:db8::/32, {V6}");
        let found = node_ports("10.0.0.0/8,172.16.0.0/12,'2001:db8::/32'", &[]);
        assert_eq!(found, [of_v4, of_v6]);
        let no = "nodePortAddresses: no interface of this node has 203.0.113.1";
        let found = node_ports("primary", &["203.0.113.1"]);
        assert_eq!(found, [format!("{no}, its primary address, {V4}")]);
        let config = config("nodePortAddresses: ['2001:db8::/32']\n");
        let without_v6 = unserved_node_ports(&config, &[], &interfaces()[..1]);
        assert_eq!(without_v6, [], "a node of the other family alone");
    }

    #[test]
    fn replies_that_only_a_bridge_sees_give_a_warning() {
        let mut ports = interfaces();
        let told = |text: &str, interfaces: &[Interface], misses| {
            half_seen(&config(text), interfaces, misses).is_some()
        };
        const HOST: &str = "portolan: {socketBalancing: host}\n";
        assert!(!told(HOST, &ports, true), "no bridge");
        (ports[3].veth_port, ports[3].attach) = (true, true);
        assert!(told(HOST, &ports, true));
        assert!(!told(HOST, &ports, false), "br_netfilter");
        assert!(!told("", &ports, true), "at sockets");
    }

    fn pods(text: &str, node: Option<&Node>, ranges: &[&str], within: Option<&str>) -> String {
        let ranges = ranges.iter().map(|range| range.parse().expect("a range"));
        let service = ObjectName::new("default", "kubernetes");
        let within = within.map(|ip| (service, ip.parse().expect("an address")));
        let (config, ranges) = (config(text), ranges.collect());
        let about = judge_pods(&config, "node-a", node, &ranges, within.as_ref());
        about.map_or_else(String::new, |warning| warning.to_string())
    }

    #[test]
    fn pod_ranges_that_contain_service_addresses_give_a_warning() {
        let told = |cidr: &str, ranges: &[&str], within| {
            pods(&format!("clusterCIDR: '{cidr}'\n"), None, ranges, within)
        };
        assert_eq!(told("10.244.0.0/16", &["10.96.0.0/12"], None), "");
        for (cidr, range) in [
            ("10.96.0.0/12", "10.96.0.0/12"),
            ("10.0.0.0/8", "10.96.0.0/12"),
            ("10.244.0.0/16,10.100.0.0/16", "10.96.0.0/12"),
            ("fd00::/16", "fd00:30::/108"),
        ] {
            let told = told(cidr, &["172.30.0.0/16", range], None);
            let cidr = cidr.replace(',', ", ");
            let begins = format!("clusterCIDR: {cidr} overlaps with the service range {range}: ");
            assert!(told.starts_with(&begins), "{told}");
        }
        let told = told("10.96.0.0/12", &[], Some("10.96.0.1"));
        let what = "with 10.96.0.1, the cluster IP of Service default/kubernetes: ";
        assert!(told.contains(what), "{told}");
    }

    #[test]
    fn detect_local_mode_node_cidr_without_pod_cidrs_gives_a_warning() {
        const NODE_CIDR: &str = "detectLocalMode: NodeCIDR\n";
        let mut own = node("");
        for node in [None, Some(&own)] {
            let told = pods(NODE_CIDR, node, &[], None);
            assert!(told.contains("Node node-a, which has none, so"), "{told}");
            assert_eq!(pods("clusterCIDR: 10.244.0.0/16\n", node, &[], None), "");
        }
        own.pod_ranges = Box::new(["10.40.1.0/24".parse().expect("a range")]);
        assert_eq!(pods(NODE_CIDR, Some(&own), &[], None), "");
    }

    #[test]
    fn a_service_with_a_cluster_ip_in_the_pod_ranges_is_found_while_it_exists() {
        let mut cluster = Cluster::new(&service("a", "172.30.0.1", ""));
        let named = |cluster: &Cluster| {
            let (name, ip) = cluster.state.in_pod_ranges.as_ref()?;
            Some(format!("{name} {ip}"))
        };
        let ranges = ["10.96.0.0/12", "172.30.0.3/32"].map(|text| [text.parse().expect("a range")]);
        cluster.state.set_pod_ranges(&ranges[0]);
        assert_eq!(named(&cluster), None);
        cluster.apply(&service("b", "10.96.0.2", ""));
        cluster.apply(&service("c", "10.96.0.3", ""));
        assert_eq!(named(&cluster).as_deref(), Some("shop/b 10.96.0.2"));
        cluster.delete(Kind::Service, "shop/b");
        assert_eq!(named(&cluster).as_deref(), Some("shop/c 10.96.0.3"));
        cluster.apply(&service("c", "10.96.0.4", ""));
        assert_eq!(named(&cluster).as_deref(), Some("shop/c 10.96.0.4"));
        cluster.apply(&service("c", "172.30.0.3", ""));
        assert_eq!(named(&cluster), None);
        cluster.state.set_pod_ranges(&ranges[1]);
        assert_eq!(named(&cluster).as_deref(), Some("shop/c 172.30.0.3"));
    }
}
