// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests of the evaluation of filters.

use rstest::rstest;

use super::*;
use crate::{Counter, Port, Protocol, V4, trace::Hook};

fn tuple(src: [u8; 4], src_port: u16, dst: [u8; 4], dst_port: u16) -> Tuple {
    let mapped = |octets| V4 { octets }.widened();
    Tuple {
        src: mapped(src),
        dst: mapped(dst),
        src_port: Port::from_host(src_port),
        dst_port: Port::from_host(dst_port),
        protocol: Protocol::TCP,
        family: 4,
        signals: 2,
        kind: 0,
    }
}

const CLIENT: [u8; 4] = [10, 0, 0, 5];
const SERVICE: [u8; 4] = [10, 96, 0, 10];
const BACKEND: [u8; 4] = [10, 40, 1, 10];

/// A client's packet to a service, which gets a backend's address.
fn event() -> Event {
    Event {
        before: tuple(CLIENT, 1025, SERVICE, 80),
        after: tuple(CLIENT, 1025, BACKEND, 8080),
        outcome: Counter::ForwardedNew as u32,
        service: 3,
        interface: 7,
        process: 42,
        hook: Hook::Ingress as u8,
        ..Event::EMPTY
    }
}

const BOTH: u32 = Term::SRC | Term::DST;

fn term(kind: u32, sides: u32, low: u32, high: u32) -> Term {
    Term {
        kind,
        sides,
        low,
        high,
        ..Term::NONE
    }
}

fn net(sides: u32, octets: [u8; 4], bits: u32) -> Term {
    let mask = V6::from_words(
        [
            u32::MAX,
            u32::MAX,
            u32::MAX,
            (u64::from(u32::MAX) << (32 - bits)) as u32,
        ]
        .map(u32::to_be),
    );
    Term {
        address: V4 { octets }.widened().masked(mask),
        mask,
        ..term(Term::NET, sides, 0, 0)
    }
}

fn wants(terms: &[Term], clauses: &[(u32, u32)], event: &Event) -> bool {
    let mut filter = Filter::all(u64::MAX);
    filter.terms[..terms.len()].copy_from_slice(terms);
    filter.term_count = terms.len() as u32;
    for (place, (mask, value)) in filter.clauses.iter_mut().zip(clauses) {
        *place = Clause {
            mask: *mask,
            value: *value,
        };
    }
    filter.clause_count = clauses.len() as u32;
    filter.wants(event)
}

#[rstest]
#[case::client(net(BOTH, CLIENT, 32), true)]
#[case::client_as_source(net(Term::SRC, CLIENT, 32), true)]
#[case::client_is_no_destination(net(Term::DST, CLIENT, 32), false)]
#[case::service_before(net(Term::DST, SERVICE, 32), true)]
#[case::backend_after(net(Term::DST, BACKEND, 32), true)]
#[case::range(net(BOTH, [10, 40, 0, 0], 16), true)]
#[case::other_range(net(BOTH, [10, 41, 0, 0], 16), false)]
#[case::port_before(term(Term::PORT, Term::DST, 80, 80), true)]
#[case::port_after(term(Term::PORT, BOTH, 8000, 8100), true)]
#[case::port_of_the_other_side(term(Term::PORT, Term::SRC, 80, 80), false)]
#[case::protocol(term(Term::PROTOCOL, 0, 6, 0), true)]
#[case::other_protocol(term(Term::PROTOCOL, 0, 17, 0), false)]
#[case::family(term(Term::FAMILY, 0, 4, 0), true)]
#[case::other_family(term(Term::FAMILY, 0, 6, 0), false)]
#[case::hook(term(Term::HOOK, 0, 1 << Hook::Ingress as u32, 0), true)]
#[case::other_hook(term(Term::HOOK, 0, 1 << Hook::Egress as u32, 0), false)]
#[case::interface(term(Term::INTERFACE, 0, 7, 0), true)]
#[case::other_interface(term(Term::INTERFACE, 0, 8, 0), false)]
#[case::process(term(Term::PROCESS, 0, 42, 0), true)]
#[case::service(term(Term::SERVICE, 0, 3, 0), true)]
#[case::other_service(term(Term::SERVICE, 0, 4, 0), false)]
#[case::outcome(term(Term::OUTCOME, 0, 1 << Counter::ForwardedNew as u32, 0), true)]
#[case::other_outcome(term(Term::OUTCOME, 0, 1 << Counter::ForwardedHit as u32, 0), false)]
fn a_filter_term_matches_one_property(#[case] term: Term, #[case] wanted: bool) {
    assert_eq!(wants(&[term], &[(1, 1)], &event()), wanted);
}

#[test]
fn a_clause_needs_all_its_terms_and_a_filter_one_of_its_clauses() {
    let (yes, no) = (net(BOTH, CLIENT, 32), net(BOTH, [9; 4], 32));
    let event = event();
    assert!(wants(&[yes, no], &[(0b11, 0b01)], &event), "and not");
    assert!(!wants(&[yes, no], &[(0b11, 0b11)], &event), "and");
    assert!(
        wants(&[yes, no], &[(0b10, 0b10), (0b01, 0b01)], &event),
        "or"
    );
    assert!(!wants(&[yes, no], &[], &event), "nothing is wanted");
}

#[test]
fn a_negated_port_is_excluded_before_and_after_translation() {
    for port in [80, 8080] {
        let term = term(Term::PORT, Term::DST, port, port);
        assert!(!wants(&[term], &[(1, 0)], &event()), "{port}");
    }
}

#[test]
fn a_filter_wants_only_the_outcomes_in_its_mask() {
    let event = event();
    assert!(Filter::all(1 << Counter::ForwardedNew as u32).wants_outcome(&event));
    assert!(!Filter::all(1 << Counter::Untouched as u32).wants_outcome(&event));
}

proptest::proptest! {
    /// For any values (true or false) of the sixteen terms and any clauses, an event is wanted
    /// exactly if, in some clause, each term it uses has the value it asks for.
    #[test]
    fn filter_clauses_are_evaluated_as_boolean_logic(truth: u16, clauses in proptest::collection::vec((0_u16.., 0_u16..), 0..CLAUSES)) {
        let terms: Vec<_> = (0..TERMS)
            .map(|n| term(Term::INTERFACE, 0, if truth >> n & 1 != 0 { 7 } else { 8 }, 0))
            .collect();
        let clauses: Vec<_> = clauses.iter().map(|(mask, value)| (u32::from(*mask), u32::from(mask & value))).collect();
        let expected = clauses.iter().any(|(mask, value)| {
            (0..TERMS).all(|n| mask >> n & 1 == 0 || (value >> n & 1 != 0) == (truth >> n & 1 != 0))
        });
        proptest::prop_assert_eq!(wants(&terms, &clauses, &event()), expected);
    }
}
