// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The judge can fail: every kind of wrong observation is told from the right one.

use std::{net::SocketAddr, time::Duration};

use proxy_common::Protocol;
use rstest::rstest;

use super::reach::ip;
use lab::{
    cases::{
        expectations::{Situation, check},
        format::{Backends, Expect},
    },
    traffic::probe::{Answer, Attempt, Outcome, Packet},
};

const CLIENT: &str = "203.0.113.9:40000";
const VIP: &str = "172.30.0.1:80";
const POD: &str = "10.40.1.10:8080";
const OTHER_POD: &str = "10.40.2.10:8080";
const NODE: &str = "192.168.40.2:50000";
const BRIDGE: &str = "10.40.1.1:50000";

fn at(text: &str) -> SocketAddr {
    text.parse().expect("address and port")
}

fn checked(
    expect: &Expect,
    attempts: &[Attempt],
    change: impl Fn(&mut Situation<'_>),
) -> Result<(), String> {
    let node = ["192.168.40.2", "10.40.1.1"].map(ip);
    let mut situation = Situation {
        protocol: Protocol::TCP,
        to: at(VIP),
        node: &node,
        client_is_node: false,
        at_the_socket: false,
        same_port: false,
    };
    change(&mut situation);
    check(expect, attempts, &situation)
}

fn holds(expect: &Expect, attempts: &[Attempt]) -> bool {
    checked(expect, attempts, |_| {}).is_ok()
}

fn attempt(outcome: Outcome) -> Attempt {
    Attempt {
        source: at(CLIENT),
        after: Duration::from_millis(1),
        outcome,
        sent: b"hello".to_vec(),
        left: None,
    }
}

fn answer(by: &str, seen: &str) -> Answer {
    Answer {
        by: at(by),
        seen: at(seen),
        from: at(VIP),
        intact: true,
    }
}

fn answered(by: &str, seen: &str) -> Attempt {
    attempt(Outcome::Answered(answer(by, seen)))
}

fn backends(list: &[&str], masquerade: Option<bool>, sticky: bool) -> Expect {
    Expect::Backends(Backends {
        backends: list.iter().map(|text| at(text)).collect(),
        masquerade,
        sticky,
    })
}

#[rstest]
#[case::kept_and_the_clients_own(Some(false), CLIENT, true)]
#[case::kept_yet_the_nodes(Some(false), NODE, false)]
#[case::kept_yet_a_strangers(Some(false), "203.0.113.77:40000", false)]
#[case::masqueraded_and_the_nodes(Some(true), NODE, true)]
#[case::masqueraded_and_the_bridges(Some(true), BRIDGE, true)]
#[case::masqueraded_yet_the_clients_own(Some(true), CLIENT, false)]
#[case::masqueraded_yet_a_strangers(Some(true), "203.0.113.77:40000", false)]
#[case::not_checked(None, "203.0.113.77:40000", true)]
fn the_source_that_an_endpoint_sees_decides_about_masquerading(
    #[case] masquerade: Option<bool>,
    #[case] seen: &str,
    #[case] expected: bool,
) {
    let expect = backends(&[POD], masquerade, false);
    assert_eq!(holds(&expect, &[answered(POD, seen)]), expected);
}

#[test]
fn a_connection_translated_at_its_socket_needs_no_masquerade_but_nobody_elses_source() {
    let expect = backends(&[POD], Some(true), false);
    let at_the_socket = |situation: &mut Situation<'_>| situation.at_the_socket = true;
    assert!(checked(&expect, &[answered(POD, CLIENT)], at_the_socket).is_ok());
    assert!(checked(&expect, &[answered(POD, NODE)], at_the_socket).is_ok());
    assert!(checked(&expect, &[answered(POD, "203.0.113.77:1")], at_the_socket).is_err());
    // The exception is for `masquerade: true` only.
    let kept = backends(&[POD], Some(false), false);
    assert!(checked(&kept, &[answered(POD, NODE)], at_the_socket).is_err());
}

#[test]
fn for_a_process_on_the_node_its_own_address_and_the_nodes_are_one() {
    let on_the_node = |situation: &mut Situation<'_>| situation.client_is_node = true;
    for masquerade in [true, false] {
        let expect = backends(&[POD], Some(masquerade), false);
        let mut own = answered(POD, NODE);
        own.source = at("192.168.40.2:50000");
        assert!(checked(&expect, &[own.clone()], on_the_node).is_ok());
        own.source = at("127.0.0.1:50000");
        assert!(checked(&expect, &[own.clone()], on_the_node).is_ok());
        own.outcome = Outcome::Answered(answer(POD, "10.40.1.77:1"));
        assert!(checked(&expect, &[own], on_the_node).is_err());
    }
}

#[test]
fn an_endpoint_that_is_not_listed_fails_the_flow() {
    let expect = backends(&[POD], None, false);
    let attempts = [answered(POD, CLIENT), answered(OTHER_POD, CLIENT)];
    let reason = checked(&expect, &attempts, |_| {}).expect_err("not listed");
    assert!(
        reason.contains(OTHER_POD) && reason.contains("connection 2"),
        "{reason}"
    );
}

#[test]
fn an_endpoint_that_is_never_seen_fails_the_flow() {
    let expect = backends(&[POD, OTHER_POD], None, false);
    let one_sided = vec![answered(POD, CLIENT); 48];
    let reason = checked(&expect, &one_sided, |_| {}).expect_err("never seen");
    assert!(reason.contains(OTHER_POD), "{reason}");
    let mut both = one_sided;
    both.push(answered(OTHER_POD, CLIENT));
    assert!(holds(&expect, &both));
    // Five tries may miss one of two by chance.
    assert!(holds(&expect, &both[..5]));
}

#[test]
fn one_udp_flow_need_not_see_every_endpoint_but_tcp_connections_must() {
    let expect = backends(&[POD, OTHER_POD], None, false);
    let one_sided = vec![answered(POD, CLIENT); 48];
    let same = |protocol| {
        move |situation: &mut Situation<'_>| {
            situation.same_port = true;
            situation.protocol = protocol;
        }
    };
    assert!(checked(&expect, &one_sided, same(Protocol::UDP)).is_ok());
    assert!(checked(&expect, &one_sided, same(Protocol::TCP)).is_err());
}

#[test]
fn a_sticky_flow_reaches_one_endpoint_of_the_list_whichever() {
    let expect = backends(&[POD, OTHER_POD], None, true);
    assert!(holds(&expect, &vec![answered(OTHER_POD, CLIENT); 48]));
    assert!(!holds(
        &expect,
        &[answered(POD, CLIENT), answered(OTHER_POD, CLIENT)]
    ));
    assert!(!holds(&expect, &[answered("10.40.3.3:80", CLIENT)]));
}

#[rstest]
#[case::no_answer(Outcome::Silence)]
#[case::refused(Outcome::Refused)]
#[case::unreachable(Outcome::Unreachable("no route to host".to_owned()))]
#[case::broken(Outcome::Broken("connected, then reset".to_owned()))]
#[case::not_permitted(Outcome::Denied)]
fn one_connection_without_an_answer_fails_the_flow(#[case] outcome: Outcome) {
    let expect = backends(&[POD], None, false);
    let mut attempts = vec![answered(POD, CLIENT); 23];
    attempts.push(attempt(outcome));
    assert!(!holds(&expect, &attempts));
}

#[test]
fn an_answer_from_elsewhere_or_damaged_or_late_fails_the_flow() {
    let expect = backends(&[POD], None, false);
    for from in ["10.40.1.10:8080", "172.30.0.1:81", "172.30.0.2:80"] {
        let from_elsewhere = Answer {
            from: at(from),
            ..answer(POD, CLIENT)
        };
        assert!(
            !holds(&expect, &[attempt(Outcome::Answered(from_elsewhere))]),
            "{from}"
        );
    }
    let damaged = Answer {
        intact: false,
        ..answer(POD, CLIENT)
    };
    assert!(!holds(&expect, &[attempt(Outcome::Answered(damaged))]));
    let late = Attempt {
        after: Duration::from_millis(1020),
        ..answered(POD, CLIENT)
    };
    assert!(!holds(&expect, &[late]));
}

#[rstest]
#[case::at_once(Outcome::Refused, 5, true)]
#[case::late(Outcome::Refused, 1000, false)]
#[case::silent(Outcome::Silence, 1000, false)]
#[case::another_error(Outcome::Unreachable("no route to host".to_owned()), 5, false)]
#[case::answered(Outcome::Answered(answer(POD, CLIENT)), 5, false)]
#[case::not_permitted(Outcome::Denied, 0, false)]
fn only_a_prompt_refusal_is_a_reject(
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
fn only_silence_is_a_drop(#[case] outcome: Outcome, #[case] expected: bool) {
    assert_eq!(holds(&Expect::Drop, &[attempt(outcome)]), expected);
}

#[rstest]
#[case(true, Protocol::UDP, true)]
#[case(true, Protocol::TCP, false)]
#[case(false, Protocol::UDP, false)]
fn a_refusal_to_send_is_a_drop_for_a_node_process_with_udp_only(
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
fn an_owners_listener_sees_an_untouched_packet_exactly_as_sent(
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
fn what_nobody_owns_must_be_seen_leaving_the_node_unchanged(
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
    // With an answer it is no longer nobody's.
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
fn no_connection_at_all_is_no_proof() {
    for expect in [
        Expect::Drop,
        Expect::Reject,
        Expect::Untouched,
        backends(&[POD], None, false),
    ] {
        assert!(!holds(&expect, &[]));
    }
}
