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
#[case("clusterCIDR: 10.40.0.0/16", Settings::DETECTS_PODS_V4)]
#[case("clusterCIDR: 'fd00:40::/48'", Settings::DETECTS_PODS_V6)]
#[case("clusterCIDR: '10.40.0.0/16, fd00:40::/48'", Settings::DETECTS_PODS)]
#[case(BY_BRIDGE, Settings::DETECTS_PODS | Settings::PODS_BY_INTERFACE)]
#[case(BY_PREFIX, Settings::DETECTS_PODS | Settings::PODS_BY_INTERFACE)]
#[case(
    "portolan: {socketExceptions: [kubepods*/mesh*]}",
    Settings::SOCKET_EXCEPTIONS
)]
#[case("portolan: {answerPing: true}", Settings::ANSWER_PING)]
fn settings_are_flags_of_the_kernel_programs(#[case] text: &str, #[case] flag: u32) {
    let settings = config(text).expect("valid").settings();
    let expected = Settings::EMPTY.flags | Settings::POD_SOCKETS | flag;
    assert_eq!(settings.flags, expected);
}

const BY_BRIDGE: &str = "{detectLocalMode: BridgeInterface, detectLocal: {bridgeInterface: cni0}}";
const BY_PREFIX: &str =
    "{detectLocalMode: InterfaceNamePrefix, detectLocal: {interfaceNamePrefix: cali}}";

#[test]
fn pods_can_be_detected_by_bridge_or_interface_prefix() {
    for (text, expected) in [
        (BY_BRIDGE, PodInterfaces::Named("cni0".into())),
        (BY_PREFIX, PodInterfaces::Prefix("cali".into())),
    ] {
        let patterns = config(text).expect("valid").interface_patterns();
        assert_eq!(patterns.pods, Some(expected));
    }
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

/// Settings, and the value that a key of the file has then. Others are compared with kube-proxy's.
const IN_FORCE: &str = include_str!("in_force.txt");

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

/// Durations, and their milliseconds if there are any.
const DURATIONS: &str = "24h0m0s=86400000 1.5s=1500 300ms=300 0=0 0s=0 500ms=500 +5s=5000 -0s=0 .5s=500 \
     1.s=1000 2000\u{b5}s=2 2000\u{3bc}s=2 2562047h=9223369200000 \
     2562048h= = += .s= 1.2.3s= 10= h= -1s= 1d=";
/// Integers, and their values if there are any.
const INTEGERS: &str = "14=14 +5=5 -0x1f=-31 0b11=3 0o17=15 017=15 1_000=1000 0=0 \
                        1_= = 08= +-5= 0x= 1.5=";

#[test]
fn durations_and_integers_are_parsed_as_in_go() {
    for row in DURATIONS.split(' ') {
        let (text, expected) = row.split_once('=').expect("a row");
        let expected = expected.parse().ok().map(Duration::from_millis);
        assert_eq!(duration(text), expected, "{text:?}");
    }
    for row in INTEGERS.split(' ') {
        let (text, expected) = row.split_once('=').expect("a row");
        assert_eq!(integer(text), expected.parse().ok(), "{text:?}");
    }
}

/// Settings, an address of the node, and whether node ports are served there.
const SERVED: &str = include_str!("served.txt");

#[test]
fn node_ports_are_served_where_configured() {
    let internal = ["192.168.40.2", "fd00:c0::2"].map(|ip| ip.parse().expect("an address"));
    for [text, address, served] in rows(SERVED) {
        let config = config(&text).expect("valid");
        let is_served = config.serves_node_ports(address.parse().expect("an address"), &internal);
        assert_eq!(is_served.to_string(), served, "{text} {address}");
    }
}
