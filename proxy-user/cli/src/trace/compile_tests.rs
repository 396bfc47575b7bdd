// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests that compile filters and evaluate them on events, with the function that the kernel runs.

use proptest::prelude::*;
use proxy_common::{
    Counter, Port, Protocol,
    trace::{Event, Hook, Tuple},
};
use rstest::rstest;

use super::*;
use crate::trace::words::parse;

struct Known;

impl Lookup for Known {
    fn interface(&self, name: &str) -> Result<u32> {
        match name {
            "eth0" => Ok(7),
            name => Err(BadInput(format!("no interface {name}")).into()),
        }
    }
    fn service(&self, service: &ServiceArg) -> Result<Vec<u32>> {
        Ok(if service.name == "cart" {
            vec![3, 4]
        } else {
            vec![5]
        })
    }
    fn pod(&mut self, _: &str, _: &str) -> Result<Vec<IpAddr>> {
        Ok(["10.0.0.5", "fd00::5"]
            .map(|text| text.parse().expect("one"))
            .into())
    }
}

fn tuple(src: &str, src_port: u16, dst: &str, dst_port: u16) -> Tuple {
    let mapped = |text: &str| match text.parse().expect("an address") {
        IpAddr::V4(v4) => V6::from(v4.to_ipv6_mapped()),
        IpAddr::V6(v6) => V6::from(v6),
    };
    Tuple {
        src: mapped(src),
        dst: mapped(dst),
        src_port: Port::from_host(src_port),
        dst_port: Port::from_host(dst_port),
        protocol: Protocol::TCP,
        family: if src.contains(':') { 6 } else { 4 },
        signals: 2,
        kind: 0,
    }
}

/// Returns the event for a client's first packet to the service shop/cart; the packet is translated
/// to an endpoint's address.
fn event() -> Event {
    Event {
        before: tuple("10.0.0.5", 1025, "10.96.0.10", 80),
        after: tuple("10.0.0.5", 1025, "10.40.1.10", 8080),
        service: 4,
        outcome: Counter::ForwardedNew as u32,
        interface: 7,
        hook: Hook::Ingress as u8,
        ..Event::EMPTY
    }
}

fn wants(text: &str, event: &Event) -> bool {
    let tree = parse(&[text.to_owned()]).expect("a filter");
    let filter = compile(tree.as_ref(), false, Exact::Yes, &mut Known).expect("short enough");
    filter.wants_outcome(event) && filter.wants(event)
}

#[rstest]
#[case("", true)]
#[case("host 10.0.0.5", true)]
#[case("10.0.0.5", true)]
#[case("src host 10.0.0.5 and dst port 80", true)]
#[case("src 10.0.0.5", true)]
#[case("dst 10.0.0.5", false)]
#[case("host 10.40.1.10 and tcp port 8080", true)]
#[case("tcp port 80", true)]
#[case("udp port 80", false)]
#[case("udp or port 80", true)]
#[case("not port 80 and not port 8080", false)]
#[case("!(port 81 or port 82)", true)]
#[case("net 10.96.0.0/12", true)]
#[case("net 10.97.0.1/16 or net 10.40.0.0/16", true)]
#[case("ip6", false)]
#[case("ip", true)]
#[case("portrange 8000-8100", true)]
#[case("src portrange 8000-8100", false)]
#[case("inbound && interface eth0", true)]
#[case("outbound", false)]
#[case("packets", true)]
#[case("calls", false)]
#[case("connect", false)]
#[case("service shop/cart", true)]
#[case("not service shop/cart", false)]
#[case("service shop/other", false)]
#[case("not service shop/other", true)]
#[case("pod shop/web", true)]
#[case("client pod/shop/web", true)]
#[case("not pod shop/web", false)]
#[case("dst pod shop/web", false)]
#[case("backend 10.40.1.10", true)]
#[case("client 10.0.0.0/24", true)]
#[case("verdict forward", true)]
#[case("verdict drop or verdict reject", false)]
#[case("outcome forwarded_new", true)]
#[case("not outcome forwarded_new", false)]
#[case("port 80 and port 81", false)]
#[case("not port 80", false)]
#[case("port 80 and not port 80", false)]
fn a_filter_matches_the_events_its_words_describe(#[case] text: &str, #[case] wanted: bool) {
    assert_eq!(wants(text, &event()), wanted, "{text}");
}

#[test]
fn untouched_packets_match_only_if_the_filter_asks_for_them() {
    let untouched = Event {
        outcome: Counter::Untouched as u32,
        ..event()
    };
    assert!(!wants("host 10.0.0.5", &untouched));
    assert!(wants("host 10.0.0.5 and verdict untouched", &untouched));
    let all = compile(None, true, Exact::Yes, &mut Known).expect("short");
    assert!(all.wants_outcome(&untouched) && all.wants(&untouched));
}

#[rstest]
#[case("hots 10.0.0.5", "\"hots\" is not known; the words are host, net")]
#[case("host", "a value is missing after \"host\"")]
#[case("host cart", "service NAMESPACE/NAME")]
#[case("host 10.0.0.0/8", "write net 10.0.0.0/8")]
#[case("port 0", "no port number")]
#[case("port http", "no port number")]
#[case("portrange 90-80", "is empty")]
#[case("portrange 90", "no range")]
#[case("net 10.0.0.0/33", "no IP address or range")]
#[case("(port 80", "a closing parenthesis is missing")]
#[case("port 80)", "\")\" is not expected")]
#[case("port 80 or", "something is missing")]
#[case("not", "something is missing")]
#[case("verdict lost", "use one of forward, reject, drop, untouched")]
#[case("outcome lost", "`portolan counters` lists them")]
#[case("pod web", "use NAMESPACE/NAME")]
#[case("service A/B", "use NAME, NAMESPACE/NAME")]
#[case("process x", "no process id")]
fn an_invalid_filter_is_refused_in_one_line_that_says_why(#[case] text: &str, #[case] said: &str) {
    let error = parse(&[text.to_owned()]).expect_err("refused").to_string();
    assert!(
        error.starts_with("filter: ") && error.contains(said),
        "{error}"
    );
    assert!(!error.contains('\n'), "{error}");
}

#[test]
fn a_filter_that_is_too_long_is_refused() {
    let many: Vec<_> = (1..=17).map(|port| format!("port {port}")).collect();
    let deep = "(".repeat(100);
    let pairs: Vec<_> = (1..=8)
        .map(|n| format!("(port {n} or port {})", n + 8))
        .collect();
    for (text, said) in [
        (many.join(" or "), "too long"),
        (pairs.join(" and "), "too long"),
        (deep, "too many parentheses"),
        ("not ".repeat(100) + "tcp", "too many negations"),
    ] {
        let compiled = parse(&[text])
            .map_err(anyhow::Error::from)
            .and_then(|tree| compile(tree.as_ref(), false, Exact::Yes, &mut Known));
        let error = compiled.expect_err("refused").to_string();
        assert!(error.contains(said), "{error}");
    }
    let repeated = vec!["port 80"; 40].join(" or ");
    assert!(wants(&repeated, &event()), "one word is one term");
}

/// In the kernel, the reason of a refused call is not known, so the kernel must hand over at least
/// all calls that the filter wants.
#[rstest]
#[case("outcome forwarded_new and port 80", true)]
#[case("not outcome forwarded_new and port 80", true)]
#[case("verdict drop or port 81", true)]
#[case("verdict drop and port 81", false)]
#[case("not (verdict drop or port 80)", false)]
fn a_filter_without_reasons_matches_more_calls(#[case] text: &str, #[case] wanted: bool) {
    let tree = parse(&[text.to_owned()]).expect("a filter");
    let filter = compile(tree.as_ref(), false, Exact::No, &mut Known).expect("short");
    let found = filter.wants_outcome(&event()) && filter.wants(&event());
    assert_eq!(found, wanted, "{text}");
}

/// Generates filter trees over hooks, each with whether it is true for an event at ingress.
fn trees() -> impl Strategy<Value = (Tree, bool)> {
    let leaf = any::<bool>().prop_map(|truth| {
        let hook = if truth { Hook::Ingress } else { Hook::Egress };
        (Tree::Word(Word::Hooks(1 << hook as u32)), truth)
    });
    leaf.prop_recursive(4, 12, 2, |inner| {
        prop_oneof![
            inner
                .clone()
                .prop_map(|(tree, truth)| (Tree::Not(Box::new(tree)), !truth)),
            (inner.clone(), inner.clone())
                .prop_map(|((a, x), (b, y))| (Tree::And(Box::new(a), Box::new(b)), x && y)),
            (inner.clone(), inner)
                .prop_map(|((a, x), (b, y))| (Tree::Or(Box::new(a), Box::new(b)), x || y)),
        ]
    })
}

proptest! {
    #[test]
    fn a_compiled_filter_matches_what_its_syntax_tree_matches((tree, truth) in trees()) {
        let filter = compile(Some(&tree), true, Exact::Yes, &mut Known).expect("two terms");
        prop_assert_eq!(filter.wants(&event()), truth);
    }
}
