// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests that the lab's clients distinguish rejected packets, dropped packets and silence.

use std::{net::SocketAddr, time::Duration};

use lab::{
    node::topology::{Plumbing, Topology},
    traffic::{clients::Client, probe::Outcome},
};
use proxy_common::Protocol;
use rstest::rstest;

use super::{TO_POD, check, flow, forward, prerouting};
use crate::reach::layout;

#[rstest]
#[case("icmpx type port-unreachable", "reject")]
#[case("icmpx type host-unreachable", "neither")]
#[case("icmpx type admin-prohibited", "neither")]
fn of_the_icmp_errors_only_port_unreachable_is_a_reject(
    #[values("TCP", "UDP", "SCTP")] protocol: &str,
    #[case] with: &str,
    #[case] right: &str,
) {
    let rules = forward(&format!("ip daddr 198.51.100.1 reject with {with}"));
    for expect in ["reject", "drop", "untouched"] {
        let found = check(Plumbing::Routed, &rules, &flow(protocol, expect));
        assert_eq!(found.is_ok(), expect == right, "{expect}: {found:?}");
    }
}

#[test]
fn a_tcp_reset_is_a_reject() {
    let rules = forward("ip daddr 198.51.100.1 tcp dport 8080 reject with tcp reset");
    assert_eq!(
        check(Plumbing::Bridge, &rules, &flow("TCP", "reject")),
        Ok(())
    );
    assert!(check(Plumbing::Bridge, &rules, &flow("TCP", "drop")).is_err());
}

#[rstest]
fn a_dropped_packet_satisfies_only_expect_drop(#[values("TCP", "UDP", "SCTP")] protocol: &str) {
    let rules = forward("ip daddr 198.51.100.1 drop");
    for (expect, holds) in [("drop", true), ("reject", false), ("untouched", false)] {
        let found = check(Plumbing::Routed, &rules, &flow(protocol, expect));
        assert_eq!(found.is_ok(), holds, "{expect}: {found:?}");
    }
    assert!(
        check(
            Plumbing::Routed,
            &prerouting(TO_POD),
            &flow(protocol, "drop")
        )
        .is_err()
    );
}

#[rstest]
fn a_client_reports_silence_after_its_patience(
    #[values(Protocol::TCP, Protocol::UDP, Protocol::SCTP)] protocol: Protocol,
) {
    let topology = Topology::build(layout(), Plumbing::Routed).expect("topology");
    let mut client = Client::new(
        &topology.outside,
        "203.0.113.9".parse().expect("an address"),
    );
    client.patience = Duration::from_millis(30);
    let nobody: SocketAddr = "198.51.100.1:80".parse().expect("an address");
    let attempt = client.call(protocol, nobody, 0).expect("call");
    assert_eq!(attempt.outcome, Outcome::Silence);
    assert!(
        attempt.after < Duration::from_millis(500),
        "{:?}",
        attempt.after
    );
}
