// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests of the settings.

use std::{path::Path, time::Duration};

use proxy_common::{Prefix, Settings, V4, flow::IdleTimes, masquerade::PortRanges};
use rstest::rstest;

use super::*;
use crate::interfaces::PodInterfaces;

fn config(text: &str) -> Result<Config, ConfigError> {
    RawConfig::parse("portolan.yaml", text)?.check()
}

#[test]
fn nothing_said_means_kube_proxys_defaults() {
    for text in ["", "# nothing\n", "---\n", "{}\n"] {
        let config = config(text).expect("valid");
        assert_eq!(config.healthz_bind_address.to_string(), "0.0.0.0:10256");
        assert_eq!(config.metrics_bind_address.to_string(), "127.0.0.1:10249");
        assert_eq!(config.node_port_addresses, NodePortAddresses::Every);
        assert_eq!(config.local_detection, LocalDetection::None);
        assert_eq!(config.idle_times, IdleTimes::DEFAULT);
        let settings = Settings {
            flags: Settings::EMPTY.flags | Settings::POD_SOCKETS,
            ..Settings::EMPTY
        };
        assert_eq!(config.settings(), settings);
    }
}

#[test]
fn every_key_is_read() {
    let text = "
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
clusterCIDR: 10.40.0.0/16, fd00:40::/48
hostnameOverride: node-a
nodePortAddresses: [192.168.40.0/24]
detectLocalMode: ClusterCIDR
clientConnection: {kubeconfig: /etc/kubeconfig}
conntrack: {tcpEstablishedTimeout: 12h0m0s, tcpCloseWaitTimeout: 30m, udpTimeout: 40s, udpStreamTimeout: '0'}
metricsBindAddress: 127.0.0.1:1
healthzBindAddress: '[::]:2'
nftables: {masqueradeAll: true}
portolan:
  pinDirectory: /sys/fs/bpf/elsewhere
  socketBalancing: host
  socketExceptions: [kubepods*/mesh*]
  reserveNodePorts: true
  interfaces: [eth*]
  masquerade: mark
  forwarding: redirect
  masqueradePorts: [5000-5999]
  maps: {frontends: 1024, records: 1025, slots: 1026, backends: 1027, flows: 1028, affinity: 1029, sockets: 1031, sourceRanges: 1030}
  logLevel: debug
  logPackets: true
  perServiceMetrics: true
";
    let config = config(text).expect("valid");
    assert_eq!(config.hostname_override.as_deref(), Some("node-a"));
    assert_eq!(config.pin_directory, Path::new("/sys/fs/bpf/elsewhere"));
    assert_eq!(config.socket_balancing, SocketBalancing::Host);
    assert_eq!(config.forwarding, Forwarding::Redirect);
    assert_eq!(config.interfaces, ["eth*"]);
    assert_eq!(config.capacities.source_ranges, 1030);
    assert_eq!(config.capacities.sockets, 1031);
    assert_eq!(config.socket_exceptions, ["kubepods*/mesh*"]);
    assert_eq!(config.log_level, "debug");
    assert!(config.log_packets);
    assert_eq!(
        config.kubeconfig.as_deref(),
        Some(Path::new("/etc/kubeconfig"))
    );
    assert!(config.unused.is_empty());
    // What is written is read back as the same.
    let written = render(&config).expect("written");
    assert_eq!(
        RawConfig::parse("f", &written)
            .expect(&written)
            .check()
            .expect("valid"),
        config
    );
    let times = config.idle_times;
    assert_eq!(
        (times.tcp_established, times.tcp_close_wait),
        (43_200, 1800)
    );
    assert_eq!(
        (times.udp, times.udp_stream),
        (40, IdleTimes::DEFAULT.udp_stream)
    );
    let settings = config.settings();
    assert_eq!(
        settings.flags,
        Settings::EMPTY.flags
            | Settings::MASQUERADE_ALL
            | Settings::MARK_ONLY
            | Settings::DETECTS_PODS
            | Settings::SOCKET_EXCEPTIONS
            | Settings::RESERVE_NODE_PORTS
    );
    assert!(settings.pods_v4[0].contains(Ipv4Addr::new(10, 40, 7, 1).into()));
    assert!(!settings.pods_v4[0].contains(Ipv4Addr::new(10, 41, 7, 1).into()));
    assert_eq!(settings.pods_v4[1], Prefix::<V4>::NONE);
    assert!(
        settings.pods_v6[0].contains(
            "fd00:40::1"
                .parse::<std::net::Ipv6Addr>()
                .expect("v6")
                .into()
        )
    );
    assert_eq!(settings.masquerade_ports, PortRanges([5000, 5999, 0, 0]));
}

#[rstest]
#[case("{}", 14)]
#[case("iptables: {masqueradeBit: 7}", 7)]
#[case("nftables: {masqueradeBit: 8}", 8)]
#[case("{iptables: {masqueradeBit: 7}, nftables: {masqueradeBit: 8}}", 7)]
#[case(
    "{mode: nftables, iptables: {masqueradeBit: 7}, nftables: {masqueradeBit: 8}}",
    8
)]
#[case(
    "{mode: iptables, iptables: {masqueradeBit: 0}, nftables: {masqueradeBit: 8}}",
    0
)]
#[case("{mode: nftables, iptables: {masqueradeBit: 7}}", 14)]
fn the_masquerade_bit_is_that_of_the_mode(#[case] text: &str, #[case] bit: u32) {
    let config = config(text).expect("valid");
    assert_eq!(config.marks.masquerade, 1 << bit);
    assert!(config.unused.is_empty(), "{:?}", config.unused);
}

#[rstest]
#[case(
    "nftables: {masqueradeBit: 32}",
    "nftables.masqueradeBit: \"32\" is no bit of a packet's mark; use one from 0 to 31, best 14"
)]
#[case(
    "{mode: ipvs, iptables: {masqueradeBit: -1}}",
    "iptables.masqueradeBit: \"-1\" is no bit of a packet's mark; use one from 0 to 31, best 14"
)]
#[case(
    "clusterCIDR: 10.40.0.0",
    "clusterCIDR: \"10.40.0.0\" is not an address range; write it like 10.244.0.0/16"
)]
#[case(
    "clusterCIDR: 10.0.0.0/24,10.0.1.0/24,10.0.2.0/24,10.0.3.0/24,10.0.4.0/24",
    "clusterCIDR: \"10.0.0.0/24,10.0.1.0/24,10.0.2.0/24,10.0.3.0/24,10.0.4.0/24\" has more than 4 ranges of one family; merge some into a larger one"
)]
#[case(
    "detectLocalMode: ClusterCIDR",
    "detectLocalMode: \"ClusterCIDR\" needs clusterCIDR to be set; set it or use another mode"
)]
#[case(
    "detectLocalMode: BridgeInterface",
    "detectLocalMode: \"BridgeInterface\" needs detectLocal.bridgeInterface to be set; set it or use another mode"
)]
#[case(
    "detectLocalMode: InterfaceNamePrefix\ndetectLocal: {bridgeInterface: cni0}",
    "detectLocalMode: \"InterfaceNamePrefix\" needs detectLocal.interfaceNamePrefix to be set; set it or use another mode"
)]
#[case(
    "mode: userspace",
    "mode: \"userspace\" is no mode; leave it out, or use iptables or nftables for what differs in them"
)]
#[case(
    "nodePortAddresses: [primary, 10.0.0.0/8]",
    "nodePortAddresses: \"primary,10.0.0.0/8\" mixes primary with ranges; use primary alone or ranges alone"
)]
#[case(
    "nodePortAddresses: [eth0]",
    "nodePortAddresses: \"eth0\" is not an address range; write it like 10.244.0.0/16"
)]
#[case(
    "conntrack: {udpTimeout: soon}",
    "conntrack.udpTimeout: \"soon\" is not a duration; write it like 24h0m0s or 120s, or 0 for the default"
)]
#[case(
    "conntrack: {udpTimeout: 10ms}",
    "conntrack.udpTimeout: \"10ms\" is not between 1s and 136 years; correct it"
)]
#[case(
    "healthzBindAddress: localhost",
    "healthzBindAddress: \"localhost\" is not an address and port; write it like 0.0.0.0:10256"
)]
#[case(
    "portolan: {masqueradePorts: ['1-2', '3-4', '5-6']}",
    "portolan.masqueradePorts: \"1-2,3-4,5-6\" is not one or two ranges; write it like [1024-29999, 61000-65535]"
)]
#[case(
    "portolan: {masqueradePorts: [9-8]}",
    "portolan.masqueradePorts: \"9-8\" is not a range of ports; write it like 1024-29999"
)]
#[case(
    "portolan: {maps: {flows: 1}}",
    "portolan.maps.flows: \"1\" is not between 16 and 67108864 entries; correct it"
)]
fn a_bad_value_is_told_with_key_value_and_remedy(#[case] text: &str, #[case] expected: &str) {
    assert_eq!(config(text).expect_err("invalid").to_string(), expected);
}

#[rstest]
#[case("metricsBindAddress: x\nclusterCidr: 10.0.0.0/8\n", 2, &["unknown key \"clusterCidr\"; the nearest one is \"clusterCIDR\""])]
#[case("portolan:\n  maps:\n    flow: 3\n", 3, &["unknown key \"flow\"; the nearest one is \"flows\""])]
#[case("pinDirectory: /x\n", 1, &["unknown key \"pinDirectory\""])]
#[case("iptables: {masqueradeAll: maybe}\n", 1, &["maybe"])]
#[case("portolan:\n  socketBalancing: some\n", 2, &["some", "all", "host"])]
#[case("kind: Service\n", 1, &["kind is \"Service\" where KubeProxyConfiguration is wanted"])]
fn an_unknown_key_or_word_is_told_with_those_that_are_known(
    #[case] text: &str,
    #[case] line: u64,
    #[case] words: &[&str],
) {
    let error = config(text).expect_err("malformed").to_string();
    assert!(
        error.starts_with(&format!("configuration file portolan.yaml, line {line}: ")),
        "{error}"
    );
    for word in words {
        assert!(error.contains(word), "{word} in {error}");
    }
}

#[test]
fn a_file_that_is_not_there_is_told() {
    let error = RawConfig::read(Path::new("/nonexistent.yaml")).expect_err("unreadable");
    assert_eq!(
        error.to_string(),
        "cannot read the configuration file /nonexistent.yaml; check the path given to --config"
    );
}

#[test]
fn flags_override_the_file() {
    let file = RawConfig::parse(
        "f",
        "iptables: {masqueradeAll: true}\nhostnameOverride: a\nportolan: {maps: {flows: 99}}\n",
    );
    let flags = RawConfig::parse("flags", "hostnameOverride: b\n").expect("valid");
    let config = flags.or(file.expect("valid")).check().expect("valid");
    assert_eq!(config.hostname_override.as_deref(), Some("b"));
    assert!(config.masquerade_all);
    assert_eq!(config.capacities.flows, 99);
}

#[rstest]
#[case("24h0m0s", Some(86_400_000))]
#[case("1.5s", Some(1500))]
#[case("300ms", Some(300))]
#[case("0", Some(0))]
#[case("0s", Some(0))]
#[case("", None)]
#[case("10", None)]
#[case("h", None)]
#[case("-1s", None)]
#[case("1d", None)]
fn durations_are_written_as_in_go(#[case] text: &str, #[case] milliseconds: Option<u64>) {
    assert_eq!(duration(text), milliseconds.map(Duration::from_millis));
}

#[rstest]
#[case::every("[]", "127.0.0.1", true)]
#[case::never_on_loopback_of_ipv6("[]", "::1", false)]
#[case::primary("[primary]", "192.168.40.2", true)]
#[case::not_primary("[primary]", "192.168.41.2", false)]
#[case::within("[192.168.41.0/24]", "192.168.41.2", true)]
#[case::outside("[192.168.41.0/24]", "192.168.40.2", false)]
#[case::a_family_without_a_range_has_every_one("[192.168.41.0/24]", "fd00:c0::2", true)]
#[case::both_families("[192.168.41.0/24, 'fd00:c1::/64']", "fd00:c0::2", false)]
fn node_ports_are_served_where_configured(
    #[case] setting: &str,
    #[case] address: &str,
    #[case] served: bool,
) {
    let config = config(&format!("nodePortAddresses: {setting}")).expect("valid");
    let internal = [
        "192.168.40.2".parse().expect("v4"),
        "fd00:c0::2".parse().expect("v6"),
    ];
    let address = address.parse().expect("an address");
    assert_eq!(config.node_port_addresses.serve(address, &internal), served);
}

/// As kubeadm writes it.
const KUBEADM: &str = "
apiVersion: kubeproxy.config.k8s.io/v1alpha1
bindAddress: 0.0.0.0
bindAddressHardFail: false
clientConnection:
  acceptContentTypes: \"\"
  burst: 0
  contentType: \"\"
  kubeconfig: /var/lib/kube-proxy/kubeconfig.conf
  qps: 0
clusterCIDR: 10.244.0.0/16
configSyncPeriod: 0s
conntrack:
  maxPerCore: null
  min: null
  tcpBeLiberal: false
  tcpCloseWaitTimeout: null
  tcpEstablishedTimeout: null
  udpStreamTimeout: 0s
  udpTimeout: 0s
detectLocal:
  bridgeInterface: \"\"
  interfaceNamePrefix: \"\"
detectLocalMode: \"\"
enableProfiling: false
healthzBindAddress: \"\"
hostnameOverride: \"\"
iptables:
  localhostNodePorts: null
  masqueradeAll: false
  masqueradeBit: null
  minSyncPeriod: 0s
  syncPeriod: 0s
ipvs:
  excludeCIDRs: null
  minSyncPeriod: 0s
  scheduler: \"\"
  strictARP: false
  syncPeriod: 0s
  tcpFinTimeout: 0s
  tcpTimeout: 0s
  udpTimeout: 0s
kind: KubeProxyConfiguration
logging:
  flushFrequency: 0
  options:
    json:
      infoBufferSize: \"0\"
    text:
      infoBufferSize: \"0\"
  verbosity: 0
metricsBindAddress: \"\"
mode: \"\"
nftables:
  masqueradeAll: false
  masqueradeBit: null
  minSyncPeriod: 0s
  syncPeriod: 0s
nodePortAddresses: null
oomScoreAdj: null
portRange: \"\"
showHiddenMetricsForVersion: \"\"
winkernel:
  enableDSR: false
  forwardHealthCheckVip: false
  networkName: \"\"
  rootHnsEndpointName: \"\"
  sourceVip: \"\"
";

#[test]
fn the_file_that_kubeadm_writes_works_as_it_is() {
    let first = config(KUBEADM).expect("valid");
    assert_eq!(
        first.kubeconfig.as_deref(),
        Some(Path::new("/var/lib/kube-proxy/kubeconfig.conf"))
    );
    assert_eq!(first.local_detection, LocalDetection::ClusterCidr);
    assert!(first.unused.is_empty(), "{:?}", first.unused);
    let other = KUBEADM
        .replace("mode: \"\"\nnftables", "mode: ipvs\nnftables")
        .replace("scheduler: \"\"", "scheduler: rr")
        .replace("maxPerCore: null", "maxPerCore: 32768");
    let other = config(&other).expect("valid");
    assert_eq!(other.unused, ["ipvs", "conntrack.maxPerCore"]);
}

#[rstest]
#[case::bridge("detectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: cni0}\n", PodInterfaces::Named("cni0".into()))]
#[case::prefix("detectLocalMode: InterfaceNamePrefix\ndetectLocal: {interfaceNamePrefix: cali}\n", PodInterfaces::Prefix("cali".into()))]
fn pods_may_be_told_by_their_interface(#[case] text: &str, #[case] expected: PodInterfaces) {
    let first = config(text).expect("valid");
    assert_eq!(first.interface_patterns().pods, Some(expected));
    let settings = first.settings();
    assert!(settings.has(Settings::DETECTS_PODS) && settings.has(Settings::PODS_BY_INTERFACE));
    let written = render(&first).expect("written");
    assert_eq!(config(&written).expect(&written), first);
}

#[test]
fn mode_nftables_brings_the_defaults_that_it_has_in_kube_proxy() {
    let iptables = config("mode: iptables\n").expect("valid");
    assert_eq!(iptables, config("").expect("valid"));
    assert_eq!(
        iptables.unallocated_cluster_ips,
        UnallocatedClusterIps::Pass
    );
    let nftables = config("mode: nftables\n").expect("valid");
    assert_eq!(nftables.node_port_addresses, NodePortAddresses::Primary);
    assert_eq!(
        nftables.unallocated_cluster_ips,
        UnallocatedClusterIps::Drop
    );
    let written = render(&nftables).expect("written");
    assert_eq!(config(&written).expect(&written), nftables);
    let said =
        "mode: nftables\nnodePortAddresses: [0.0.0.0/0]\nportolan: {unallocatedClusterIPs: pass}\n";
    let said = config(said).expect("valid");
    assert!(matches!(
        said.node_port_addresses,
        NodePortAddresses::Within(_)
    ));
    assert_eq!(said.unallocated_cluster_ips, UnallocatedClusterIps::Pass);
}
