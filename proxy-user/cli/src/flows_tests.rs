// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests for the filters and cells of flows, and for the memory that one row takes.

use rstest::rstest;

use super::*;
use crate::args::tests::parsed;

pub(crate) fn flow() -> Flow {
    Flow {
        service: "shop/cart:http".into(),
        protocol: "TCP",
        client: "10.40.1.9:40000".parse().expect("an address"),
        frontend: "172.30.1.1:80".parse().expect("an address"),
        backend: "10.40.1.10:8080".parse().expect("an address"),
        translated_port: None,
        masquerade: None,
        masqueraded: false,
        carried: false,
        state: "established",
        idle_seconds: 3,
        past_stack_by: None,
    }
}

pub(crate) fn rows() -> Vec<FlowRow> {
    let mut names = HashSet::new();
    let masqueraded = Flow {
        client: "192.0.2.77:61234".parse().expect("an address"),
        masquerade: "10.40.0.1:33000".parse().ok(),
        masqueraded: true,
        state: "closing-by-client",
        idle_seconds: 12_345,
        ..flow()
    };
    let long = Flow {
        service: "kube-system/kube-dns-of-the-second-zone:dns-tcp".into(),
        protocol: "UDP",
        client: "[fd00:40::1:2:3:9]:40000".parse().expect("an address"),
        frontend: "[fd00:30::1]:53".parse().expect("an address"),
        backend: "[fd00:40::1:2:4:10]:5353".parse().expect("an address"),
        translated_port: Some(2000),
        state: "unanswered",
        ..flow()
    };
    let all = [flow(), masqueraded, long];
    all.into_iter().map(|flow| row(&mut names, flow)).collect()
}

#[rstest]
#[case("", true)]
#[case("shop/cart --client 10.40.1.9", true)]
#[case("shop/car --client 10.40.1.9", false)]
#[case("--client 10.40.1.10", false)]
#[case("--client ::ffff:10.40.1.9", true)]
#[case("--backend 10.40.1.10 --state closed,established", true)]
#[case("--state closed", false)]
#[case("shop/cart:http --port 8080 --address 10.40.1.9", true)]
#[case("cart:80 --port 40000 --protocol tcp", true)]
#[case::the_endpoints_port("cart:8080", false)]
#[case("--protocol udp", false)]
fn filters_keep_what_they_name_and_nothing_else(#[case] flags: &str, #[case] wanted: bool) {
    assert_eq!(parsed::<FlowArgs>(flags).wants(&flow()), wanted);
}

/// The pictures have the other sources.
#[test]
fn a_masqueraded_flows_source_is_not_known_before_its_first_packet() {
    let flow = Flow {
        masqueraded: true,
        ..flow()
    };
    let shown = seen_as(&row(&mut HashSet::new(), flow)).to_string();
    assert_eq!(shown, "(no packet sent yet)");
}

#[test]
fn a_flow_rows_json_has_every_field_of_the_flow() {
    let masquerade = "10.40.0.1:33000".parse().ok();
    let masqueraded = Flow {
        masquerade,
        ..flow()
    };
    for flow in [flow(), masqueraded] {
        let row = row(&mut HashSet::new(), flow.clone());
        let mut row = serde_json::to_value(row).expect("a row");
        for pod in ["clientPod", "backendPod"] {
            let pod = row.as_object_mut().expect("an object").remove(pod);
            assert_eq!(pod, Some(serde_json::Value::Null), "nobody was asked");
        }
        assert_eq!(row, serde_json::to_value(flow).expect("a flow"));
    }
}
