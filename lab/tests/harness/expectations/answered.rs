// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests of flows that expect an answer (`backends`): which endpoint answers, which source it sees,
//! and whether the answer is complete.

use std::time::Duration;

use lab::traffic::probe::{Answer, Attempt, Outcome};
use proxy_common::Protocol;
use rstest::rstest;

use super::{
    BRIDGE, CLIENT, NODE, OTHER_POD, POD, Situation, answer, answered, at, attempt, backends,
    checked, holds, shared,
};

#[rstest]
#[case::kept_and_the_clients_own(Some(false), CLIENT, true)]
#[case::kept_yet_the_nodes(Some(false), NODE, false)]
#[case::kept_yet_a_strangers(Some(false), "203.0.113.77:40000", false)]
#[case::masqueraded_and_the_nodes(Some(true), NODE, true)]
#[case::masqueraded_and_the_bridges(Some(true), BRIDGE, true)]
#[case::masqueraded_yet_the_clients_own(Some(true), CLIENT, false)]
#[case::masqueraded_yet_a_strangers(Some(true), "203.0.113.77:40000", false)]
#[case::not_checked(None, "203.0.113.77:40000", true)]
fn masquerading_is_checked_by_the_source_that_the_endpoint_sees(
    #[case] masquerade: Option<bool>,
    #[case] seen: &str,
    #[case] expected: bool,
) {
    let expect = backends(&[POD], masquerade, false);
    assert_eq!(holds(&expect, &[answered(POD, seen)]), expected);
}

#[test]
fn with_socket_translation_masquerade_true_allows_client_and_node_source() {
    let expect = backends(&[POD], Some(true), false);
    let at_the_socket = |situation: &mut Situation<'_>| situation.at_the_socket = true;
    assert!(checked(&expect, &[answered(POD, CLIENT)], at_the_socket).is_ok());
    assert!(checked(&expect, &[answered(POD, NODE)], at_the_socket).is_ok());
    assert!(checked(&expect, &[answered(POD, "203.0.113.77:1")], at_the_socket).is_err());
    // Only `masquerade: true` allows both sources.
    let kept = backends(&[POD], Some(false), false);
    assert!(checked(&kept, &[answered(POD, NODE)], at_the_socket).is_err());
}

#[test]
fn for_a_client_on_the_node_the_nodes_source_fits_any_masquerade_value() {
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
fn an_answer_from_an_unlisted_endpoint_fails_the_flow() {
    let expect = backends(&[POD], None, false);
    let attempts = [answered(POD, CLIENT), answered(OTHER_POD, CLIENT)];
    let reason = checked(&expect, &attempts, |_| {}).expect_err("not listed");
    assert!(
        reason.contains(OTHER_POD) && reason.contains("connection 2"),
        "{reason}"
    );
}

#[test]
fn a_listed_endpoint_that_never_answers_fails_the_flow() {
    let expect = backends(&[POD, OTHER_POD], None, false);
    let one_sided = vec![answered(POD, CLIENT); 48];
    let reason = checked(&expect, &one_sided, |_| {}).expect_err("never seen");
    assert!(reason.contains(OTHER_POD), "{reason}");
    let mut both = one_sided;
    both.push(answered(OTHER_POD, CLIENT));
    assert!(holds(&expect, &both));
    // With five connections, one of two endpoints may be missed by chance.
    assert!(holds(&expect, &both[..5]));
}

#[test]
fn with_one_source_port_tcp_must_reach_all_endpoints_but_udp_need_not() {
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
fn a_sticky_flow_must_reach_exactly_one_of_the_listed_endpoints() {
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
fn an_answer_from_a_wrong_address_damaged_or_late_fails_the_flow() {
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
#[case::as_expected(&[3, 1], 300, 100, true)]
#[case::within_chance(&[3, 1], 270, 130, true)]
#[case::equal_instead(&[3, 1], 200, 200, false)]
#[case::one_endpoint_only(&[3, 1], 400, 0, false)]
#[case::a_share_is_missing(&[3], 300, 100, false)]
fn shares_of_endpoints_are_checked_as_far_as_chance_lets(
    #[case] shares: &[u32],
    #[case] pod: usize,
    #[case] other: usize,
    #[case] expected: bool,
) {
    let by = |end: &str, count| vec![answered(end, CLIENT); count];
    let attempts = [by(POD, pod), by(OTHER_POD, other)].concat();
    assert_eq!(
        holds(&shared(&[POD, OTHER_POD], shares), &attempts),
        expected
    );
}
