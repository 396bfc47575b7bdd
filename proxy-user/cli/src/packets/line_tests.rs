// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests for events as lines of text and as JSON.

use super::*;

fn end(address: &str, port: u16, pod: Option<&str>, service: Option<&str>) -> End {
    End {
        address: address.parse().expect("an address"),
        port: Some(port),
        pod: pod.map(str::to_owned),
        service: service.map(str::to_owned),
    }
}

fn line() -> Line {
    let client = end("10.40.1.50", 40_001, Some("shop/web-1"), None);
    Line {
        time: stamp(1_700_000_000_123_456_789),
        hook: "ingress",
        interface: Some("veth1".to_owned()),
        process: None,
        protocol: "TCP".to_owned(),
        signals: "[S]".to_owned(),
        before: Some(Ends {
            from: client.clone(),
            to: end("172.30.0.20", 80, None, Some("shop/cart:http")),
        }),
        after: Some(Ends {
            from: client,
            to: end("10.40.1.10", 8080, Some("shop/cart-a"), None),
        }),
        service: Some("shop/cart:http".to_owned()),
        verdict: "forward",
        path: None,
        outcome: "forwarded_new",
        reason: "The first packet of a new flow, translated.",
        error: None,
        page: None,
        length: Some(74),
    }
}

#[test]
fn a_trace_line_has_both_ends_and_what_the_translation_changed() {
    let text = line().text(|outcome| format!("<{outcome}>"));
    assert_eq!(
        text,
        "22:13:20.123456 veth1 ingress TCP [S]  10.40.1.50:40001 (pod shop/web-1) > 172.30.0.20:80 (service shop/cart:http)  =>  to \
         10.40.1.10:8080 (pod shop/cart-a)  <forward forwarded_new: The first packet of a new flow, translated.>"
    );
}

#[test]
fn a_socket_calls_line_has_the_process_and_no_source() {
    let call = Line {
        hook: "connect",
        interface: None,
        process: Some(Process {
            name: "curl".to_owned(),
            pid: 4711,
        }),
        signals: String::new(),
        before: Some(Ends {
            from: end("0.0.0.0", 0, None, None),
            to: end("172.30.0.40", 80, None, Some("shop/closed:http")),
        }),
        after: None,
        verdict: "reject",
        outcome: "rejected_no_endpoint",
        reason: "Rejected: the service has no endpoint.",
        error: Some("Connection refused".to_owned()),
        ..line()
    };
    let text = call.text(str::to_owned);
    let ends = "curl[4711] connect TCP  > 172.30.0.40:80 (service shop/closed:http)  [shop/cart:http]  reject rejected_no_endpoint (Connection \
                refused): Rejected";
    assert!(text.contains(ends), "{text}");
}

#[test]
fn a_process_cannot_write_into_the_terminal_by_its_name() {
    assert_eq!(command(b"a\x1b[2Jb\n\0rest"), "a?[2Jb?");
}

#[test]
fn the_outcome_is_coloured_where_colours_are_allowed() {
    let line = line();
    let tone = line.tone();
    let [painted, plain] = [true, false].map(|colour| line.text(|text| tone.paint(text, colour)));
    let expected = format!("\x1b[32m{}\x1b[0m", line.outcome());
    assert!(painted.ends_with(&expected) && !plain.contains('\x1b'));
}
