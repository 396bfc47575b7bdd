// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests that node ports, modes and logs mean the same as in kube-proxy's settings.

use rstest::rstest;

use super::{
    super::{LocalDetection, LogFormat},
    config,
};

#[rstest]
#[case("", "127.0.0.1", true)]
#[case("iptables: {localhostNodePorts: false}", "127.0.0.1", false)]
#[case("iptables: {localhostNodePorts: false}", "10.1.2.3", true)]
#[case("bindAddress: 10.1.2.3", "10.1.2.3", true)]
#[case("bindAddress: 10.1.2.3", "192.168.40.2", false)]
#[case("bindAddress: 10.1.2.3", "fd00:c0::2", true)]
#[case("bindAddress: 0.0.0.0", "192.168.40.2", true)]
fn loopback_and_primary_addresses_follow_their_settings(
    #[case] text: &str,
    #[case] address: &str,
    #[case] served: bool,
) {
    let of_primary = text.starts_with("bind");
    let primary = of_primary.then_some("nodePortAddresses: [primary]\n");
    let config = config(&format!("{}{text}", primary.unwrap_or_default())).expect("valid");
    let internal = ["192.168.40.2", "fd00:c0::2"].map(|ip| ip.parse().expect("an address"));
    let address = address.parse().expect("an address");
    assert_eq!(config.serves_node_ports(address, &internal), served);
}

#[test]
fn cluster_cidr_without_ranges_recognises_no_pods() {
    let config = config("detectLocalMode: ClusterCIDR").expect("valid");
    assert_eq!(config.local_detection, LocalDetection::None);
}

#[rstest]
#[case("nftables: {masqueradeAll: true}", true)]
#[case("{mode: iptables, nftables: {masqueradeAll: true}}", false)]
#[case("{mode: ipvs, iptables: {masqueradeAll: true}}", true)]
#[case("{mode: nftables, iptables: {masqueradeAll: true}}", false)]
fn masquerade_all_is_taken_from_the_section_of_the_mode(#[case] text: &str, #[case] all: bool) {
    assert_eq!(config(text).expect("valid").masquerade_all, all);
}

#[rstest]
#[case("logging: {verbosity: 4, format: json}", "debug", LogFormat::Json)]
#[case(
    "{portolan: {logLevel: warn}, logging: {verbosity: 9}}",
    "warn",
    LogFormat::Text
)]
#[case("logging: {verbosity: 2, flushFrequency: 5s}", "info", LogFormat::Text)]
fn klog_settings_choose_log_level_and_format(
    #[case] text: &str,
    #[case] level: &str,
    #[case] format: LogFormat,
) {
    let config = config(text).expect("valid");
    assert_eq!(
        (config.log_level.as_str(), config.log_format),
        (level, format)
    );
}
