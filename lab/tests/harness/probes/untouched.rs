// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests that the lab's clients notice whether packets pass unchanged.

use lab::node::topology::Plumbing;
use rstest::rstest;

use super::{check, flow};

#[rstest]
#[case::nothing_done("", true)]
#[case::translated(
    "chain x { type nat hook prerouting priority -100; ip daddr 198.51.100.1 dnat ip to 10.40.1.10 }",
    false
)]
#[case::another_destination(
    "chain x { type filter hook forward priority -150; ip daddr set 198.51.100.9 }",
    false
)]
#[case::another_source(
    "chain x { type nat hook postrouting priority 100; masquerade }",
    false
)]
#[case::another_port(
    "chain x { type filter hook forward priority -150; ip daddr 198.51.100.1 th dport set 8081 }",
    false
)]
#[case::swallowed("chain x { type filter hook forward priority 0; drop }", false)]
fn a_packet_to_an_unowned_address_is_untouched_only_if_it_leaves_unchanged(
    #[values("TCP", "UDP", "SCTP")] protocol: &str,
    #[case] rules: &str,
    #[case] holds: bool,
) {
    let found = check(Plumbing::Routed, rules, &flow(protocol, "untouched"));
    assert_eq!(found.is_ok(), holds, "{found:?}");
}

#[rstest]
#[case::nothing_done("", true)]
#[case::translated(
    "chain x { type nat hook prerouting priority -100; ip daddr 192.168.40.2 th dport 30000 dnat ip to 10.40.1.10:8080 }",
    false
)]
#[case::another_port(
    "chain x { type nat hook prerouting priority -100; ip daddr 192.168.40.2 th dport 30000 redirect to 30001 }",
    false
)]
#[case::another_source(
    "chain x { type nat hook input priority 100; snat ip to 10.9.9.9 }",
    false
)]
#[case::swallowed(
    "chain x { type filter hook input priority 0; th dport 30000 drop }",
    false
)]
fn a_packet_to_the_node_is_untouched_only_if_it_is_received_as_sent(
    #[values("TCP", "UDP")] protocol: &str,
    #[case] rules: &str,
    #[case] holds: bool,
) {
    let rules = rules.replace("th dport", &format!("{} dport", protocol.to_lowercase()));
    let flow = format!(
        "{{from: 203.0.113.9, to: '192.168.40.2:30000', protocol: {protocol}, expect: untouched}}"
    );
    let found = check(Plumbing::Bridge, &rules, &flow);
    assert_eq!(found.is_ok(), holds, "{found:?}");
}
