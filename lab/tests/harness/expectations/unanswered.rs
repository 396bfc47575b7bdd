// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests of flows that expect no answer of an endpoint: `reject`, `drop` and `untouched`.

use std::time::Duration;

use lab::{
    cases::format::Expect,
    traffic::probe::{Answer, Attempt, Outcome, Packet},
};
use proxy_common::Protocol;
use rstest::rstest;

use super::{CLIENT, NODE, POD, VIP, answer, at, attempt, backends, checked, holds};

#[rstest]
#[case::at_once(Outcome::Refused, 5, true)]
#[case::late(Outcome::Refused, 1000, false)]
#[case::silent(Outcome::Silence, 1000, false)]
#[case::another_error(Outcome::Unreachable("no route to host".to_owned()), 5, false)]
#[case::answered(Outcome::Answered(answer(POD, CLIENT)), 5, false)]
#[case::not_permitted(Outcome::Denied, 0, false)]
fn expect_reject_holds_only_for_prompt_refusals(
    #[case] outcome: Outcome,
    #[case] milliseconds: u64,
    #[case] expected: bool,
) {
    let after = Duration::from_millis(milliseconds);
    let attempts = [
        attempt(Outcome::Refused),
        Attempt {
            after,
            ..attempt(outcome)
        },
    ];
    assert_eq!(holds(&Expect::Reject, &attempts), expected);
}

#[rstest]
#[case::silent(Outcome::Silence, true)]
#[case::refused(Outcome::Refused, false)]
#[case::another_error(Outcome::Unreachable("no route to host".to_owned()), false)]
#[case::answered(Outcome::Answered(answer(POD, CLIENT)), false)]
#[case::broken(Outcome::Broken("connected, then reset".to_owned()), false)]
fn expect_drop_holds_only_for_silence(#[case] outcome: Outcome, #[case] expected: bool) {
    assert_eq!(holds(&Expect::Drop, &[attempt(outcome)]), expected);
}

#[rstest]
#[case(true, Protocol::UDP, true)]
#[case(true, Protocol::TCP, false)]
#[case(false, Protocol::UDP, false)]
fn eperm_counts_as_a_drop_only_for_udp_from_the_node(
    #[case] on_the_node: bool,
    #[case] protocol: Protocol,
    #[case] expected: bool,
) {
    let verdict = checked(&Expect::Drop, &[attempt(Outcome::Denied)], |situation| {
        situation.client_is_node = on_the_node;
        situation.protocol = protocol;
    });
    assert_eq!(verdict.is_ok(), expected);
}

#[rstest]
#[case::as_sent(VIP, CLIENT, VIP, true)]
#[case::another_destination(POD, CLIENT, VIP, false)]
#[case::another_source(VIP, NODE, VIP, false)]
#[case::another_source_port(VIP, "203.0.113.9:40001", VIP, false)]
#[case::an_answer_from_elsewhere(VIP, CLIENT, POD, false)]
fn expect_untouched_requires_that_the_owner_receives_the_packet_as_sent(
    #[case] by: &str,
    #[case] seen: &str,
    #[case] from: &str,
    #[case] expected: bool,
) {
    let seen = Answer {
        from: at(from),
        ..answer(by, seen)
    };
    assert_eq!(
        holds(&Expect::Untouched, &[attempt(Outcome::Answered(seen))]),
        expected
    );
    assert!(!holds(&Expect::Untouched, &[attempt(Outcome::Silence)]));
    assert!(!holds(&Expect::Untouched, &[attempt(Outcome::Refused)]));
}

fn leaving(source: &str, destination: &str, protocol: u8, payload: &[u8]) -> Vec<Packet> {
    vec![Packet {
        protocol,
        source: at(source),
        destination: at(destination),
        payload: payload.to_vec(),
    }]
}

#[rstest]
#[case::as_sent(leaving(CLIENT, VIP, 6, b"hello"), true)]
#[case::nothing(vec![], false)]
#[case::another_source(leaving(NODE, VIP, 6, b"hello"), false)]
#[case::another_destination(leaving(CLIENT, POD, 6, b"hello"), false)]
#[case::another_port(leaving(CLIENT, "172.30.0.1:81", 6, b"hello"), false)]
#[case::another_payload(leaving(CLIENT, VIP, 6, b"hullo"), false)]
#[case::another_protocol(leaving(CLIENT, VIP, 17, b"hello"), false)]
fn expect_untouched_requires_unowned_packets_to_leave_the_node_unchanged(
    #[case] left: Vec<Packet>,
    #[case] expected: bool,
) {
    let silent = Attempt {
        left: Some(left),
        ..attempt(Outcome::Silence)
    };
    assert_eq!(
        holds(&Expect::Untouched, std::slice::from_ref(&silent)),
        expected
    );
    // With an answer, some host has the address.
    for outcome in [Outcome::Refused, Outcome::Answered(answer(VIP, CLIENT))] {
        assert!(!holds(
            &Expect::Untouched,
            &[Attempt {
                outcome,
                ..silent.clone()
            }]
        ));
    }
}

#[test]
fn every_expectation_fails_without_any_connection() {
    for expect in [
        Expect::Drop,
        Expect::Reject,
        Expect::Untouched,
        backends(&[POD], None, false),
    ] {
        assert!(!holds(&expect, &[]));
    }
}
