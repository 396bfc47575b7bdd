// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests of the settings.

mod file;
mod kube_proxy;
mod table;

use std::{net::Ipv6Addr, time::Duration};

use control::testing::rows;
use linux::interfaces::PodInterfaces;
use proxy_common::{Prefix, Settings, V4, flow::IdleTimes, masquerade::PortRanges};
use rstest::rstest;

use super::*;

/// Returns the settings of a text that needs no header (apiVersion and kind).
fn config(text: &str) -> Result<Config, ConfigError> {
    RawConfig::parse_part("portolan.yaml", text)?.check()
}

/// Returns the settings of a complete file.
fn whole(text: &str) -> Result<Config, ConfigError> {
    RawConfig::parse("portolan.yaml", text)?.check()
}

#[rstest]
#[case("nftables: {masqueradeAll: true}", Settings::MASQUERADE_ALL)]
#[case("portolan: {masquerade: mark}", Settings::MARK_ONLY)]
#[case("clusterCIDR: '10.40.0.0/16, fd00:40::/48'", Settings::DETECTS_PODS)]
#[case(
    "portolan: {socketExceptions: [kubepods*/mesh*]}",
    Settings::SOCKET_EXCEPTIONS
)]
#[case("portolan: {reserveNodePorts: true}", Settings::RESERVE_NODE_PORTS)]
#[case("portolan: {answerPing: true}", Settings::ANSWER_PING)]
fn settings_are_flags_of_the_kernel_programs(#[case] text: &str, #[case] flag: u32) {
    let settings = config(text).expect("valid").settings();
    let expected = Settings::EMPTY.flags | Settings::POD_SOCKETS | flag;
    assert_eq!(settings.flags, expected);
}

#[test]
fn numbers_and_ranges_are_those_of_the_kernel_programs() {
    let text = "
clusterCIDR: 10.40.0.0/16, fd00:40::/48
conntrack: {tcpEstablishedTimeout: 12h0m0s, tcpCloseWaitTimeout: 30m, udpTimeout: 40s, udpStreamTimeout: '0'}
portolan: {masqueradePorts: [5000-5999], socketBalancing: host}
";
    let config = config(text).expect("valid");
    let times = config.idle_times;
    let idle = [times.tcp_established, times.tcp_close_wait, times.udp];
    assert_eq!(idle, [43_200, 1800, 40]);
    assert_eq!(times.udp_stream, IdleTimes::DEFAULT.udp_stream);
    let settings = config.settings();
    assert!(!settings.has(Settings::POD_SOCKETS));
    assert!(settings.pods_v4[0].contains(Ipv4Addr::new(10, 40, 7, 1).into()));
    assert!(!settings.pods_v4[0].contains(Ipv4Addr::new(10, 41, 7, 1).into()));
    assert_eq!(settings.pods_v4[1], Prefix::<V4>::NONE);
    let v6: Ipv6Addr = "fd00:40::1".parse().expect("v6");
    assert!(settings.pods_v6[0].contains(v6.into()));
    assert_eq!(settings.masquerade_ports, PortRanges([5000, 5999, 0, 0]));
}

/// Settings, and the value that a key of the file has then.
const IN_FORCE: &str = r#"
{} | iptables.masqueradeBit: 14
iptables: {masqueradeBit: 7} | iptables.masqueradeBit: 7
nftables: {masqueradeBit: 8} | iptables.masqueradeBit: 8
{iptables: {masqueradeBit: 7}, nftables: {masqueradeBit: 8}} | iptables.masqueradeBit: 7
{mode: nftables, iptables: {masqueradeBit: 7}, nftables: {masqueradeBit: 8}}
  | nftables.masqueradeBit: 8
{mode: iptables, iptables: {masqueradeBit: 0}, nftables: {masqueradeBit: 8}}
  | iptables.masqueradeBit: 0
{mode: nftables, iptables: {masqueradeBit: 7}} | nftables.masqueradeBit: 14
nftables: {masqueradeAll: true} | iptables.masqueradeAll: true
{mode: iptables, nftables: {masqueradeAll: true}} | iptables.masqueradeAll: false
{mode: ipvs, iptables: {masqueradeAll: true}} | iptables.masqueradeAll: true
{mode: nftables, iptables: {masqueradeAll: true}} | nftables.masqueradeAll: false
iptables: {masqueradeAll: On} | iptables.masqueradeAll: true
iptables: {masqueradeAll: TRUE} | iptables.masqueradeAll: true
iptables: {masqueradeAll: off} | iptables.masqueradeAll: false
{portolan: {xdp: off}, hostnameOverride: on, conntrack: {udpTimeout: 0}} | hostnameOverride: "on"
{nodePortAddresses: [], detectLocal: {clusterCIDRs: []}} | nodePortAddresses: []
mode: nftables | portolan.unallocatedClusterIPs: "drop"
{mode: nftables, nodePortAddresses: [0.0.0.0/0]} | nodePortAddresses: ["0.0.0.0/0"]
{mode: nftables, portolan: {unallocatedClusterIPs: pass}} | portolan.unallocatedClusterIPs: "pass"
logging: {verbosity: 4, format: json} | portolan.logLevel: "debug"
{portolan: {logLevel: warn}, logging: {verbosity: 9}} | portolan.logLevel: "warn"
logging: {verbosity: 2, flushFrequency: 5s} | portolan.logLevel: "info"
"#;

/// The mode decides which of kube-proxy's two settings counts, and defaults.
#[test]
fn settings_in_force_are_those_of_the_mode_with_klogs_and_yamls_words() {
    for [text, expected] in rows(IN_FORCE) {
        let shown = document(&config(&text).expect(&text)).expect("written");
        let (key, value) = expected.split_once(": ").expect("a value");
        let found = shown.pointer(&format!("/{}", key.replace('.', "/")));
        let found = found.map(ToString::to_string);
        assert_eq!(found.as_deref(), Some(value), "{text}");
    }
}

#[rstest]
#[case("24h0m0s", Some(86_400_000))]
#[case("1.5s", Some(1500))]
#[case("300ms", Some(300))]
#[case("0", Some(0))]
#[case("0s", Some(0))]
#[case("500ms", Some(500))]
#[case("+5s", Some(5000))]
#[case("-0s", Some(0))]
#[case(".5s", Some(500))]
#[case("1.s", Some(1000))]
#[case("2000\u{b5}s", Some(2))]
#[case("2000\u{3bc}s", Some(2))]
#[case("2562047h", Some(9_223_369_200_000))]
#[case("2562048h", None)]
#[case("", None)]
#[case("+", None)]
#[case(".s", None)]
#[case("1.2.3s", None)]
#[case("10", None)]
#[case("h", None)]
#[case("-1s", None)]
#[case("1d", None)]
fn durations_are_parsed_as_in_go(#[case] text: &str, #[case] milliseconds: Option<u64>) {
    assert_eq!(duration(text), milliseconds.map(Duration::from_millis));
}

#[rstest]
#[case("14", Some(14))]
#[case("+5", Some(5))]
#[case("-0x1f", Some(-31))]
#[case("0b11", Some(3))]
#[case("0o17", Some(15))]
#[case("017", Some(15))]
#[case("1_000", Some(1000))]
#[case("1_", None)]
#[case("0", Some(0))]
#[case("", None)]
#[case("08", None)]
#[case("+-5", None)]
#[case("0x", None)]
#[case("1.5", None)]
fn integers_are_parsed_as_in_go(#[case] text: &str, #[case] expected: Option<i64>) {
    assert_eq!(integer(text), expected);
}

/// Settings, an address of the node, and whether node ports are served there.
const SERVED: &str = "
{} | 127.0.0.1 | true
{} | ::1 | false
nodePortAddresses: [primary] | 192.168.40.2 | true
nodePortAddresses: [primary] | 192.168.41.2 | false
nodePortAddresses: [192.168.41.0/24] | 192.168.41.2 | true
nodePortAddresses: [192.168.41.0/24] | 192.168.40.2 | false
nodePortAddresses: [192.168.41.0/24] | fd00:c0::2 | true
nodePortAddresses: [192.168.41.0/24, 'fd00:c1::/64'] | fd00:c0::2 | false
iptables: {localhostNodePorts: false} | 127.0.0.1 | false
iptables: {localhostNodePorts: false} | 10.1.2.3 | true
{nodePortAddresses: [primary], bindAddress: 10.1.2.3} | 10.1.2.3 | true
{nodePortAddresses: [primary], bindAddress: 10.1.2.3} | 192.168.40.2 | false
{nodePortAddresses: [primary], bindAddress: 10.1.2.3} | fd00:c0::2 | true
{nodePortAddresses: [primary], bindAddress: 0.0.0.0} | 192.168.40.2 | true
";

#[test]
fn node_ports_are_served_where_configured() {
    let internal = ["192.168.40.2", "fd00:c0::2"].map(|ip| ip.parse().expect("an address"));
    for [text, address, served] in rows(SERVED) {
        let config = config(&text).expect("valid");
        let is_served = config.serves_node_ports(address.parse().expect("an address"), &internal);
        assert_eq!(is_served.to_string(), served, "{text} {address}");
    }
}

#[test]
fn a_range_of_all_addresses_serves_node_ports_on_new_ones() {
    let config = config("nodePortAddresses: [0.0.0.0/0]").expect("valid");
    assert!(config.node_port_addresses.serve_every(true));
}

#[rstest]
#[case::bridge("detectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: cni0}\n", PodInterfaces::Named("cni0".into()))]
#[case::prefix("detectLocalMode: InterfaceNamePrefix\ndetectLocal: {interfaceNamePrefix: cali}\n", PodInterfaces::Prefix("cali".into()))]
fn pods_can_be_detected_by_bridge_or_interface_prefix(
    #[case] text: &str,
    #[case] expected: PodInterfaces,
) {
    let first = config(text).expect("valid");
    assert_eq!(first.interface_patterns().pods, Some(expected));
    let settings = first.settings();
    assert!(settings.has(Settings::DETECTS_PODS) && settings.has(Settings::PODS_BY_INTERFACE));
}

#[rstest]
#[case("10.40.0.0/16", [true, false])]
#[case("fd00:40::/48", [false, true])]
#[case("10.40.0.0/16,fd00:40::/48", [true, true])]
fn pods_are_detected_in_families_with_a_range(#[case] ranges: &str, #[case] expected: [bool; 2]) {
    let settings = config(&format!("clusterCIDR: {ranges}\n"));
    let settings = settings.expect("valid").settings();
    let both = [Settings::DETECTS_PODS_V4, Settings::DETECTS_PODS_V6];
    assert_eq!(both.map(|flag| settings.has(flag)), expected);
}
