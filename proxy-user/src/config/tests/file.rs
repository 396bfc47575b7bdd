// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Files that are wrong, and the file that kubeadm writes.

use std::path::Path;

use rstest::rstest;

use super::{
    super::{LocalDetection, RawConfig},
    config,
};

#[rstest]
#[case(
    "nftables: {masqueradeBit: 32}",
    "nftables.masqueradeBit: \"32\" is not a bit number; use 0 to 31 (14 is the default)"
)]
#[case(
    "{mode: ipvs, iptables: {masqueradeBit: -1}}",
    "iptables.masqueradeBit: \"-1\" is not a bit number; use 0 to 31 (14 is the default)"
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
