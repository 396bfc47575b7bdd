// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests of the settings and addresses that a node with some interfaces gets.

use config::RawConfig;
use control::{
    model::Object,
    testing::{objects, rows},
};

use super::*;

fn interface(index: u32, kind: InterfaceKind, addresses: &[&str]) -> Interface {
    let addresses = addresses.iter().map(|text| text.parse().expect("a net"));
    Interface {
        addresses: addresses.collect(),
        ..linux::testing::interface(index, &format!("if{index}"), kind)
    }
}
const OF_UPLINK: [&str; 3] = ["192.168.40.2/24", "192.168.41.2/24", "fe80::1/64"];
pub(crate) fn interfaces() -> Vec<Interface> {
    vec![
        interface(1, InterfaceKind::Loopback, &["127.0.0.1/8", "::1/128"]),
        interface(2, InterfaceKind::Uplink, &OF_UPLINK),
        interface(3, InterfaceKind::Uplink, &["fd00:c0::2/64"]),
        interface(
            4,
            InterfaceKind::PodSide,
            &["fe80::2/64", "192.168.40.2/32"],
        ),
    ]
}
pub(crate) fn node(addresses: &str) -> Node {
    let yaml = format!(
        "apiVersion: v1\nkind: Node\nmetadata: {{name: node-a}}\nstatus: {{addresses: [{addresses}]}}\n",
    );
    match objects(&yaml).0.pop() {
        Some(Object::Node(node)) => (*node).clone(),
        other => panic!("{other:?}"),
    }
}
pub(crate) fn ips(texts: &[&str]) -> Vec<IpAddr> {
    let ips = texts.iter().map(|text| text.parse().expect("an address"));
    ips.collect()
}

pub(crate) fn config(text: &str) -> Config {
    let raw = RawConfig::parse_part("portolan.yaml", text).expect("readable");
    raw.check().expect("valid")
}

#[test]
fn internal_ips_come_from_node_object_then_flag_then_interfaces() {
    let named = node("{type: InternalIP, address: 192.168.41.2}");
    let given = ips(&["fd00:c0::9", "10.0.0.9"]);
    for (node, given, expected) in [
        (Some(&named), &[][..], &["fd00:c0::2"][..]),
        (Some(&named), &given[..], &["fd00:c0::9"][..]),
        (None, &given[..], &["10.0.0.9", "fd00:c0::9"][..]),
    ] {
        let fallback = fallback_ips("node-a", node, given, &interfaces());
        assert_eq!(fallback, (ips(expected), None));
    }
}

#[test]
fn with_node_cidr_only_pods_of_this_node_are_recognised() {
    let config = config("detectLocalMode: NodeCIDR\nclusterCIDR: 10.0.0.0/8\n");
    let mut own = node("");
    let told = |node: Option<&Node>| {
        NodeSettings::new(&config, 7, node, &BTreeSet::new(), &[], &[]).settings
    };
    let is_pod = |settings: &Settings, address: [u8; 4]| {
        let address = Ipv4Addr::from(address).into();
        settings.pods_v4.iter().any(|range| range.contains(address))
    };
    let detected = told(None).flags & Settings::DETECTS_PODS;
    assert_eq!(detected, Settings::DETECTS_PODS, "nobody yet");
    assert!(!is_pod(&told(None), [10, 40, 1, 9]));
    own.pod_ranges = Box::new(["10.40.1.0/24".parse().expect("a range")]);
    assert!(is_pod(&told(Some(&own)), [10, 40, 1, 9]));
    assert!(!is_pod(&told(Some(&own)), [10, 40, 2, 9]));
    let detected = told(Some(&own)).flags & Settings::DETECTS_PODS;
    assert_eq!(
        detected,
        Settings::DETECTS_PODS_V4,
        "it has no range of IPv6"
    );
}

#[test]
fn own_addresses_include_interfaces_except_those_of_ipvs() {
    let mut all = interfaces();
    let own = own_addresses(&config(""), &all);
    let of_first = all[0].addresses[0].addr();
    assert!(own.contains(&of_first), "{own:?}");
    all[0].name = "kube-ipvs0".into();
    let others: Vec<_> = all[1..].iter().flat_map(|one| &one.addresses).collect();
    assert!(others.iter().all(|net| net.addr() != of_first));
    assert!(!own_addresses(&config(""), &all).contains(&of_first));
    let of_node = NodeSettings::new(&config(""), 7, None, &BTreeSet::new(), &[], &all).addresses;
    assert!(of_node.iter().all(|one| one.address != of_first));
    let named = config(&format!("portolan: {{ownAddresses: ['{of_first}']}}\n"));
    assert!(own_addresses(&named, &all).contains(&of_first));
    let settings = NodeSettings::new(&named, 7, None, &BTreeSet::new(), &[], &[]);
    assert_eq!(settings.addresses[0].address, of_first);
}

#[test]
fn each_ipv4_subnet_has_a_broadcast_address_if_it_is_no_pair() {
    let kind = InterfaceKind::Uplink;
    let mut all = interfaces();
    all.push(interface(5, kind, &["10.9.0.0/31", "10.8.0.1/30"]));
    let expected = [
        "10.8.0.3",
        "127.255.255.255",
        "192.168.40.255",
        "192.168.41.255",
    ];
    assert_eq!(broadcasts(&all), ips(&expected).into_iter().collect());
}

#[test]
fn cluster_ip_ranges_to_drop_beyond_the_maps_limit_give_a_warning() {
    let ranges = |count: usize| -> BTreeSet<IpNet> {
        (0..count)
            .map(|n| format!("10.{n}.0.0/16").parse().expect("a range"))
            .chain(["fd00:30::/108".parse().expect("a range")])
            .collect()
    };
    let told = |config: &Config, count| {
        let settings = NodeSettings::new(config, 7, None, &ranges(count), &[], &[]).settings;
        let unused = proxy_common::Prefix::<proxy_common::V4>::NONE;
        let held = settings.allocated_v4.iter().filter(|r| **r != unused);
        (held.count(), unheld_ranges(config, &ranges(count)))
    };
    let pass = config("");
    assert_eq!(told(&pass, 1), (0, None));
    let drop = config("mode: nftables\n");
    assert_eq!(told(&drop, 1), (1, None));
    assert_eq!(told(&drop, RANGES), (RANGES, None));
    let (held, warning) = told(&drop, RANGES + 1);
    assert_eq!(held, RANGES);
    let warning = warning.expect("a warning").to_string();
    assert!(warning.contains(" 10.4.0.0/16 that"), "{warning}");
}

#[test]
fn a_guessed_internal_ip_gives_a_warning() {
    let (taken, warning) = fallback_ips("node-a", Some(&node("")), &[], &interfaces());
    assert_eq!(taken, ips(&["192.168.40.2", "fd00:c0::2"]));
    let expected = "Node node-a: no InternalIP is known, so 192.168.40.2 of if2 and fd00:c0::2 of if3 is taken; name it in the Node object or with --node-ip";
    assert_eq!(warning.expect("a warning").to_string(), expected);
    let (taken, warning) = fallback_ips("node-a", None, &[], &[]);
    assert_eq!(taken, ips(&[]));
    let reason = warning.expect("a warning").reason;
    assert!(reason.contains("nothing can be masqueraded"), "{reason}");
}

/// Values of nodePortAddresses, where node ports are served then, and where health checks are
/// answered; `-` is not asked.
const SERVED: &str = "
 | 127.0.0.1 192.168.40.2 192.168.41.2 fd00:c0::2 fe80::1 | 0.0.0.0 ::
0.0.0.0/0,'::/0' | - | 0.0.0.0 ::
primary | 192.168.40.2 fd00:c0::2 | 192.168.40.2 fd00:c0::2
192.168.41.0/24 | - | 192.168.41.2 ::
192.168.41.0/24,fd00::/16 | 192.168.41.2 fd00:c0::2 | -
127.0.0.0/8,192.168.41.0/24,'fd00::/16','fe80::/10' | - | 127.0.0.1 192.168.41.2 fd00:c0::2
10.0.0.0/8,'2001:db8::/32' | - |
";

#[test]
fn node_ports_and_health_checks_are_where_the_setting_says_and_all_addresses_are_the_nodes() {
    for [setting, served, answered] in rows(SERVED) {
        let config = config(&format!("nodePortAddresses: [{setting}]\n"));
        let internal = ips(&["192.168.40.2", "fd00:c0::2"]);
        let told = NodeSettings::new(&config, 7, None, &BTreeSet::new(), &internal, &interfaces());
        assert_eq!(told.settings.internal_v4.octets, [192, 168, 40, 2]);
        let at = |is_wanted: fn(&&NodeAddress) -> bool| {
            let all = told.addresses.iter().filter(is_wanted);
            Vec::from_iter(all.map(|one| one.address.to_string())).join(" ")
        };
        let all = "127.0.0.1 192.168.40.2 192.168.41.2 ::1 fd00:c0::2 fe80::1";
        assert_eq!(at(|_| true), all);
        let found = at(|one| one.node_ports);
        assert!(served == "-" || found == served, "{setting}: {found}");
        let found = health_check_addresses(&config, &told.addresses);
        let found = Vec::from_iter(found.iter().map(ToString::to_string)).join(" ");
        assert!(answered == "-" || found == answered, "{setting}: {found}");
    }
}
