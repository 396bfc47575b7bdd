// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests that the lab's clients notice answers from a wrong address, wrong checksums and changed
//! payloads.

use lab::node::topology::Plumbing;

use super::{check, flow, mangle};

#[test]
fn an_answer_from_another_address_fails_the_flow() {
    // The rule translates only packets to the pod, without conntrack. So the answer has the pod's
    // own address as its source.
    let there = "chain x { type filter hook prerouting priority -150; ip daddr 198.51.100.1 ip daddr set 10.40.1.10 }";
    let expect = "{backends: ['10.40.1.10:8080'], masquerade: false}";
    let seen = check(Plumbing::Routed, there, &flow("UDP", expect)).expect_err("from elsewhere");
    assert!(
        seen.contains("an answer from 10.40.1.10:8080 instead of 198.51.100.1:8080"),
        "{seen}"
    );
    assert!(check(Plumbing::Routed, there, &flow("TCP", expect)).is_err());
    let seen = check(Plumbing::Routed, there, &flow("SCTP", expect)).expect_err("from elsewhere");
    assert!(seen.contains("instead of"), "{seen}");
}

#[test]
fn an_sctp_packet_with_a_wrong_checksum_fails_the_flow() {
    // Changes a port without correcting the checksum.
    let port = mangle("ip daddr 10.40.1.10 ip protocol sctp @th,16,16 set 8080");
    let flow = "{from: 203.0.113.9, to: '10.40.1.10:8081', protocol: SCTP, expect: {backends: ['10.40.1.10:8080']}}";
    let seen = check(Plumbing::Routed, &port, flow).expect_err("a wrong checksum");
    assert!(seen.contains("no answer"), "{seen}");
    let back = mangle("ip saddr 10.40.1.10 ip protocol sctp @th,0,16 set 8080");
    let seen = check(Plumbing::Routed, &back, &flow.replace("8081", "8080"));
    assert_eq!(seen, Ok(()), "a port that stays leaves the checksum right");
}

#[test]
fn a_damaged_udp_payload_fails_the_flow() {
    let rules = mangle("ip daddr 10.40.1.10 udp length > 500 @th,800,8 set 0xff");
    let flow = "{from: 203.0.113.9, to: '10.40.1.10:8080', protocol: UDP, expect: {backends: ['10.40.1.10:8080']}}";
    assert!(check(Plumbing::Routed, &rules, flow).is_err());
    assert_eq!(check(Plumbing::Routed, "", flow), Ok(()));
}
