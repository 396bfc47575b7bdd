// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests: where programs are attached, and what is read from interfaces.

use proxy_common::masquerade::SOURCES;

use super::*;
use rstest::rstest;

fn link(index: u32, name: &str, kind: &str, master: Option<u32>) -> Link {
    // A hardware port gives the bridge its own address.
    let last = match kind {
        "" | "bridge" => 1,
        _ => index as u8,
    };
    Link {
        index,
        name: name.into(),
        kind: kind.into(),
        master,
        mtu: 1500,
        loopback: name == "lo",
        ethernet: true,
        mac: vec![2, 0, 0, 0, 0, last],
        ..Link::default()
    }
}

fn names(interfaces: &[Interface], are_wanted: impl Fn(&Interface) -> bool) -> Vec<String> {
    let wanted = interfaces.iter().filter(|interface| are_wanted(interface));
    wanted.map(|interface| interface.name.clone()).collect()
}

fn node() -> Vec<Link> {
    vec![
        link(1, "lo", "", None),
        link(2, "eth0", "", None),
        link(3, "cni0", "bridge", None),
        link(4, "veth1", "veth", Some(3)),
        link(5, "cali1", "veth", None),
        link(6, "flannel.1", "vxlan", None),
        link(7, "dummy0", "dummy", None),
        link(8, "bond0", "bond", None),
        link(9, "eth1", "", Some(8)),
    ]
}

fn attach(patterns: &[&str]) -> Patterns {
    Patterns {
        attach: patterns.iter().map(|one| (*one).to_owned()).collect(),
        ..Patterns::default()
    }
}

fn described(addresses: &[Address]) -> Vec<Interface> {
    describe(&node(), addresses, &Patterns::default())
}

fn named<'a>(interfaces: &'a [Interface], name: &str) -> &'a Interface {
    let mut named = interfaces.iter().filter(|one| one.name == name);
    named.next().expect("is there")
}

#[rstest]
#[case(&[], &["lo", "eth0", "veth1", "cali1", "flannel.1", "bond0"])]
#[case(&["eth*"], &["lo", "eth0", "eth1"])]
#[case(&["!cali*"], &["lo", "eth0", "veth1", "flannel.1", "bond0"])]
#[case(&["*", "!eth?"], &["lo", "veth1", "cali1", "flannel.1", "dummy0", "bond0"])]
#[case(&["cni0", "!lo"], &["lo"])]
fn attach_patterns_replace_detection_except_for_bridges_and_loopback(
    #[case] patterns: &[&str],
    #[case] expected: &[&str],
) {
    let interfaces = describe(&node(), &[], &attach(patterns));
    assert_eq!(names(&interfaces, |one| one.attach), expected);
}

/// Whatever its kind, an interface with an address is an uplink; one that cannot be is named.
#[rstest]
#[case("dsa", "192.0.2.1/24", InterfaceKind::Uplink)]
#[case("wwan", "2001:db8::1/64", InterfaceKind::Uplink)]
#[case("macvtap", "192.0.2.1/24", InterfaceKind::Uplink)]
#[case("macvtap", "fe80::1/64", InterfaceKind::Other)]
#[case("dsa", "169.254.7.7/16", InterfaceKind::Other)]
#[case("dummy", "192.0.2.1/24", InterfaceKind::Other)]
#[case("vrf", "192.0.2.1/24", InterfaceKind::Other)]
#[case("ipoib", "192.0.2.1/24", InterfaceKind::Other)]
#[case("", "192.0.2.1/24", InterfaceKind::Other)]
fn an_interface_with_an_address_is_an_uplink_or_named(
    #[case] kind: &str,
    #[case] net: &str,
    #[case] expected: InterfaceKind,
) {
    let infiniband = ["ipoib", ""].contains(&kind);
    let one = Link {
        infiniband,
        ..link(2, "one", kind, None)
    };
    let described = |patterns: &[&str]| {
        let addresses = [address(2, net, true)];
        let mut all = describe(std::slice::from_ref(&one), &addresses, &attach(patterns));
        all.remove(0)
    };
    let found = described(&[]);
    assert_eq!(found.kind, expected);
    assert_eq!(found.attach, expected == InterfaceKind::Uplink);
    assert_eq!(found.unserved, infiniband);
    for chosen in [["!one"], ["eth*"]] {
        assert!(!described(&chosen).unserved, "left out on purpose");
    }
}

fn address(link: u32, net: &str, preferred: bool) -> Address {
    let net: IpNet = net.parse().expect("a network");
    Address {
        link,
        net,
        subnet: net.trunc(),
        preferred,
        duplicate: false,
    }
}

#[rstest]
#[case(&[], true)]
#[case(&["169.254.1.1/32", "fe80::1/64", "10.40.0.1/32"], true)]
#[case(&["169.254.0.1/16", "192.168.7.1/30"], true)]
#[case(&["172.18.0.3/16"], false)]
#[case(&["fe80::1/64", "2001:db8::3/64"], false)]
fn a_routed_veth_leads_to_one_pod_unless_it_has_a_subnet(
    #[case] nets: &[&str],
    #[case] one_pod: bool,
) {
    let addresses: Vec<_> = nets.iter().map(|net| address(5, net, true)).collect();
    let interfaces = described(&addresses);
    let leads = |name| named(&interfaces, name).leads_to_one_pod();
    assert_eq!(leads("cali1"), one_pod);
    assert!(leads("veth1") && !leads("eth0"));
}

fn sources(interfaces: &[Interface], name: &str) -> Vec<String> {
    let sources = named(interfaces, name).sources.iter();
    sources.map(|one| one.address.to_string()).collect()
}

#[test]
fn a_bridge_port_sends_with_the_bridges_preferred_addresses() {
    let addresses = [
        address(3, "fe80::1/64", false),
        address(3, "10.40.1.1/24", true),
        address(3, "10.40.1.2/24", false),
        address(3, "fd00:40:0:1::1/64", true),
        address(3, "10.50.1.1/24", true),
    ];
    let interfaces = described(&addresses);
    let expected = ["10.40.1.1", "10.50.1.1", "fd00:40:0:1::1"];
    assert_eq!(sources(&interfaces, "veth1"), expected);
    assert!(named(&interfaces, "veth1").addresses.is_empty());
    assert_eq!(sources(&interfaces, "cali1"), [""; 0]);
}

#[test]
fn a_duplicate_address_is_none_of_the_interfaces() {
    let mut addresses = ["2001:db8::1/64", "2001:db8::2/64"].map(|net| address(2, net, true));
    addresses[0].duplicate = true;
    assert_eq!(described(&addresses)[1].addresses, [addresses[1].net]);
}

#[test]
fn addresses_never_chosen_as_masquerade_source_are_left_out() {
    let mut addresses = vec![address(2, "192.0.2.1/24", true)];
    addresses.extend((10..30).map(|n| address(2, &format!("192.0.2.{n}/32"), true)));
    addresses.push(address(2, "198.51.100.1/24", true));
    // An IPv6 address with prefix length 128 may share more bits with a destination than others.
    addresses.extend((1..9).map(|n| address(2, &format!("2001:db8::{n}/64"), true)));
    addresses.push(address(2, "2001:db8::9/128", true));
    let interfaces = described(&addresses);
    let expected = ["192.0.2.1", "198.51.100.1", "2001:db8::1", "2001:db8::9"];
    assert_eq!(sources(&interfaces, "eth0"), expected);
}

#[test]
fn masquerade_sources_of_each_family_are_limited_in_number() {
    let mut addresses = vec![address(2, "192.0.2.100/32", true)];
    for n in 1..20 {
        addresses.push(address(2, &format!("10.{n}.0.1/16"), true));
        addresses.push(address(2, &format!("2001:db8:{n}::1/64"), true));
    }
    let interfaces = described(&addresses);
    let found = sources(&interfaces, "eth0");
    assert_eq!(found.len(), 2 * SOURCES);
    let first = (&*found[0], &*found[SOURCES]);
    assert_eq!(first, ("192.0.2.100", "2001:db8:1::1"));
}

#[rstest]
#[case(PodInterfaces::Named("cni0".into()), &["cni0", "veth1"])]
#[case(PodInterfaces::Named("cali1".into()), &["cali1"])]
#[case(PodInterfaces::Prefix("ca".into()), &["cali1"])]
#[case(PodInterfaces::Prefix("cni".into()), &["cni0", "veth1"])]
// Packets from a bridge's port count under the bridge's name.
#[case(PodInterfaces::Prefix("veth".into()), &[])]
fn pods_are_behind_interfaces_with_the_configured_name_or_prefix(
    #[case] pods: PodInterfaces,
    #[case] expected: &[&str],
) {
    let patterns = Patterns {
        pods: Some(pods),
        ..Patterns::default()
    };
    let interfaces = describe(&node(), &[], &patterns);
    assert_eq!(names(&interfaces, |one| one.pods), expected);
}

/// A VLAN's tagged frames are left to the VLAN's interface, unless that has no programs, or a
/// bridge gets the frames.
#[rstest]
#[case(&[], None, false, true)]
#[case(&["!eth0.7"], None, false, false)]
#[case(&[], Some(3), false, false)]
#[case(&[], None, true, false)]
fn vlan_frames_are_left_to_a_vlan_interface_that_has_programs(
    #[case] patterns: &[&str],
    #[case] bridge: Option<u32>,
    #[case] of_another_namespace: bool,
    #[case] expected: bool,
) {
    let mut links = node();
    links[1].master = bridge;
    links.push(Link {
        lower: Some(2),
        peer_elsewhere: of_another_namespace,
        ..link(10, "eth0.7", "vlan", None)
    });
    let interfaces = describe(&links, &[], &attach(patterns));
    let vlans = names(&interfaces, |one| one.vlans);
    assert_eq!(vlans, if expected { &["eth0"][..] } else { &[] });
    let eth0 = named(&interfaces, "eth0");
    assert_eq!(eth0.carries.is_none(), of_another_namespace);
}

/// On Azure, for one, netvsc has the addresses, and the fast device below it the frames. Marked are
/// ports with another MAC than their bridge, and veths at an Open vSwitch.
#[test]
fn devices_below_others_and_ports_of_bridges_and_switches_are_told_apart() {
    let mut links = node();
    links.extend([
        link(10, "enP1s1", "", Some(2)),
        link(11, "vrf0", "vrf", None),
        link(12, "eth2", "", Some(11)),
        link(13, "eth3", "", Some(3)),
        link(20, "ovs-system", "openvswitch", None),
        link(21, "pod-1", "veth", Some(20)),
        link(22, "eth4", "", Some(20)),
    ]);
    let interfaces = describe(&links, &[], &Patterns::default());
    let kind = |name: &str| named(&interfaces, name).kind;
    assert_eq!(kind("eth0"), InterfaceKind::Uplink);
    assert_eq!(kind("enP1s1"), InterfaceKind::Other);
    assert_eq!(kind("eth2"), InterfaceKind::Uplink, "in a VRF");
    assert_eq!(names(&interfaces, |one| one.bridge_port), ["veth1"]);
    assert_eq!(names(&interfaces, |one| one.switch_port), ["pod-1"]);
}

/// Not twice as long for each interface: a thousand pods come and go all the time.
#[test]
fn ten_times_as_many_interfaces_take_not_much_more_than_ten_times_as_long() {
    let time = |count: u32| {
        let master = |index: u32| (index > 1).then_some(1);
        let port = |index| link(index, &format!("veth{index}"), "veth", master(index));
        let links: Vec<_> = (1..=count).map(port).collect();
        let addresses = (1..=count).map(|index| address(index, "10.1.1.1/24", true));
        let addresses: Vec<_> = addresses.collect();
        let once = || {
            let start = std::time::Instant::now();
            let described = describe(&links, &addresses, &Patterns::default());
            assert_eq!(described.len(), count as usize);
            start.elapsed()
        };
        // Others use the machine, too.
        (0..5).map(|_| once()).min().expect("five times")
    };
    let (few, many) = (time(400), time(4000));
    assert!(many < few * 40, "{few:?}, {many:?}");
}
