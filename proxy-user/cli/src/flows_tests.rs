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
#[case("--service shop/cart --client 10.40.1.9", true)]
#[case("--service shop/car --client 10.40.1.9", false)]
#[case("--client 10.40.1.10", false)]
#[case("--client ::ffff:10.40.1.9", true)]
#[case("--backend 10.40.1.10 --state closed,established", true)]
#[case("--state closed", false)]
#[case("shop/cart:http --port 8080 --address 10.40.1.9", true)]
#[case("cart:80 --port 40000 --protocol tcp", true)]
#[case::the_endpoints_port("cart:8080", false)]
#[case("--port 81", false)]
#[case("--protocol udp", false)]
#[case("-n other", false)]
fn filters_keep_what_they_name_and_nothing_else(#[case] flags: &str, #[case] wanted: bool) {
    assert_eq!(parsed::<FlowArgs>(flags).wants(&flow()), wanted);
}

#[test]
fn a_pod_is_a_client_by_its_addresses() {
    let folder = tempfile::tempdir().expect("a folder");
    let slice = "kind: EndpointSlice\napiVersion: discovery.k8s.io/v1\nmetadata: {name: web-1, namespace: shop}\naddressType: IPv4\n\
                 endpoints:\n- {addresses: [10.40.1.9], targetRef: {kind: Pod, name: web}}\n";
    std::fs::write(folder.path().join("web.yaml"), slice).expect("a file");
    let names = NameArgs {
        manifests: Some(folder.path().into()),
        ..NameArgs::default()
    };
    for (client, namespace) in [("pod/shop/web", None), ("pod/web", Some("shop"))] {
        let mut args: FlowArgs = parsed(&format!("--client {client}"));
        let end = args.client.as_mut().expect("a client");
        end.look_up(namespace, &names).expect("it is there");
        assert!(args.wants(&flow()), "{client}");
    }
    let mut args: FlowArgs = parsed("--client pod/web");
    let end = args.client.as_mut().expect("a client");
    let said = end.look_up(None, &names).expect_err("no namespace");
    assert!(said.to_string().contains("pod/NAMESPACE/NAME"), "{said}");
}

#[test]
fn a_flow_row_shows_the_source_that_the_backend_sees() {
    let told = |flow: Flow| seen_as(&row(&mut HashSet::new(), flow)).to_string();
    let mut flow = flow();
    assert_eq!(told(flow.clone()), "-");
    flow.translated_port = Some(2000);
    assert_eq!(told(flow.clone()), "port 2000");
    flow.masqueraded = true;
    assert_eq!(told(flow.clone()), "(no packet sent yet)");
    flow.masquerade = "10.40.1.1:3000".parse().ok();
    assert_eq!(told(flow), "10.40.1.1:3000");
}

#[test]
fn a_flow_rows_json_has_every_field_of_the_flow() {
    for flow in [
        flow(),
        Flow {
            masquerade: "10.40.0.1:33000".parse().ok(),
            ..flow()
        },
    ] {
        let row = row(&mut HashSet::new(), flow.clone());
        let mut row = serde_json::to_value(row).expect("a row");
        for pod in ["clientPod", "backendPod"] {
            let pod = row.as_object_mut().expect("an object").remove(pod);
            assert_eq!(pod, Some(serde_json::Value::Null), "nobody was asked");
        }
        assert_eq!(row, serde_json::to_value(flow).expect("a flow"));
    }
}

#[test]
fn half_a_million_rows_fit_into_sixty_mebibytes() {
    assert!(
        size_of::<FlowRow>() * 500_000 < 60 << 20,
        "{}",
        size_of::<FlowRow>()
    );
}
