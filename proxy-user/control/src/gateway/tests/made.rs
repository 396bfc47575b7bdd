// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The Service that is made for a Gateway without addresses: when it is kept, and its slices.

use super::*;
use crate::{
    model::{Converter, Kind, Object},
    testing::converted,
};

const SERVICE: &str = "Service shop/gateway-edge";
const SLICE: &str = "EndpointSlice shop/gateway-edge-tcp-80-v4-8080";
const OTHERS: &str = "apiVersion: gateway.networking.k8s.io/v1\nkind: GatewayClass\nmetadata: {name: l4}\nspec: {controllerName: example.net/l7}\n---\n";
const WITH_PARAMETERS: &str = "apiVersion: gateway.networking.k8s.io/v1\nkind: GatewayClass\nmetadata: {name: l4}\nspec: {controllerName: portolan.dev/l4, parametersRef: {group: a, kind: B, name: c}}\n---\n";

/// Applies what is to be written, as one agent of the cluster does; returns the objects' names and
/// what happened to each.
fn write(cluster: &mut Cluster) -> Vec<String> {
    let mut done = Vec::new();
    for (name, write) in cluster.report().0 {
        let (kind, short) = name.split_once(' ').expect("a kind");
        match write {
            Some(Write::Apply(mut object)) => {
                if kind == "Service" {
                    object["spec"]["clusterIP"] = "10.96.0.50".into();
                }
                cluster.apply(&format!("{object}\n---\n"));
                done.push(format!("+{name}"));
            }
            Some(Write::Delete) => {
                let all = [Kind::Service, Kind::EndpointSlice];
                let kind = all.into_iter().find(|one| one.name() == kind);
                cluster.delete(kind.expect("what is made"), short);
                done.push(format!("-{name}"));
            }
            Some(Write::Status(_)) | None => {}
        }
    }
    done
}

/// A Gateway without addresses, with a route to `cart`, and what is made for it.
fn served(backends: &str) -> Cluster {
    let mut cluster = cluster(&[
        gateway("edge", "", TCP),
        route("TCPRoute", "shop/cart", EDGE, backends),
    ]);
    assert_eq!(write(&mut cluster), [format!("+{SERVICE}")]);
    cluster
}

/// A release of the address is worse than a Gateway that is not served for a while.
#[test]
fn a_mistake_does_not_release_the_address() {
    let clash = "{name: web, protocol: TCP, port: 80}, {name: h, protocol: HTTP, port: 80}";
    let parameters = ", infrastructure: {parametersRef: {group: a, kind: B, name: c}}";
    let host_name = ", addresses: [{type: Hostname, value: a.example}]";
    let no_class = gateway("edge", "", TCP).replace("gatewayClassName: l4", "gatewayClassName: l5");
    for mistake in [
        WITH_PARAMETERS.to_owned(),
        gateway("edge", "", clash),
        gateway("edge", host_name, TCP),
        gateway("edge", ", addresses: [{value: 198.51.100}]", TCP),
        gateway("edge", parameters, TCP),
        no_class,
    ] {
        let mut cluster = served(CART);
        write(&mut cluster);
        cluster.apply(&mistake);
        let written = write(&mut cluster);
        assert!(!written.contains(&format!("-{SERVICE}")), "{written:?}");
        // Mended, it is served as before.
        cluster.apply(&(base() + &gateway("edge", "", TCP)));
        write(&mut cluster);
        let port = &cluster.gateway_plan("shop/gateway:edge").plan.ports[0];
        let expected = ["cluster 10.96.0.50:80"];
        assert_eq!(crate::testing::frontends(&port.v4), expected, "{mistake}");
    }
}

#[test]
fn while_its_class_is_gone_all_that_is_written_stays() {
    let mut cluster = served(CART);
    assert_eq!(write(&mut cluster), [format!("+{SLICE}")]);
    cluster.delete(Kind::GatewayClass, "/l4");
    assert_eq!(write(&mut cluster), [""; 0]);
    let (writes, _) = cluster.report();
    assert!(
        writes.iter().all(|(_, write)| write.is_none()),
        "{writes:?}"
    );
    cluster.apply(OTHERS);
    assert_eq!(
        write(&mut cluster),
        [format!("-{SERVICE}"), format!("-{SLICE}")]
    );
}

#[test]
fn a_gateway_of_a_class_with_parameters_says_so() {
    let mut cluster = cluster(&[gateway("edge", ADDRESS, TCP)]);
    cluster.apply(WITH_PARAMETERS);
    let said = status(&mut cluster, "Gateway shop/edge");
    assert_eq!(
        conditions(&said),
        [
            "Accepted=False InvalidParameters",
            "Programmed=False Invalid"
        ]
    );
}

fn unaddressed(cluster: &mut Cluster) -> String {
    let said = status(cluster, "Gateway shop/edge");
    assert_eq!(conditions(&said)[1], "Programmed=False AddressNotAssigned");
    said["conditions"][1]["message"]
        .as_str()
        .expect("a text")
        .to_owned()
}

#[test]
fn the_status_says_why_a_gateway_has_no_address() {
    let mut cluster = Cluster::new(&base());
    cluster.apply(&gateway("edge", "", TCP));
    assert!(unaddressed(&mut cluster).contains("no address from a load balancer yet"));
    cluster.apply(&service("gateway-edge", "10.96.0.50", ""));
    assert!(unaddressed(&mut cluster).contains("a Service of users is called gateway-edge"));
    cluster.delete(Kind::Service, "shop/gateway-edge");
    assert!(unaddressed(&mut cluster).contains("no address from a load balancer yet"));
}

#[test]
fn without_the_setting_nothing_is_made_or_removed() {
    let mut cluster = Cluster::new(&base());
    cluster.state.gateways.set_services(false);
    cluster.apply(&gateway("edge", "", TCP));
    cluster.apply(&route("TCPRoute", "shop/cart", EDGE, CART));
    assert!(unaddressed(&mut cluster).contains("portolan.gatewayServices"));
    assert_eq!(write(&mut cluster), [""; 0]);
    // What there is of another time stays.
    let mut cluster = served(CART);
    write(&mut cluster);
    cluster.state.gateways.set_services(false);
    cluster.delete(Kind::Gateway, "shop/edge");
    assert_eq!(write(&mut cluster), [""; 0]);
}

#[test]
fn the_service_has_slices_of_all_backends_with_a_weight() {
    let refs = format!("{CART}, {{name: till, port: 80, weight: 0}}");
    let mut cluster = served(&refs);
    let (writes, _) = cluster.report();
    let slices = |name: &str| name.starts_with("EndpointSlice");
    let mut slices = writes.iter().filter(|(name, _)| slices(name));
    let Some((name, Some(Write::Apply(object)))) = slices.next() else {
        panic!("{writes:?}")
    };
    assert_eq!((&**name, slices.next()), (SLICE, None));
    let labels = &object["metadata"]["labels"];
    assert_eq!(labels["kubernetes.io/service-name"], "gateway-edge");
    assert_eq!(
        labels["endpointslice.kubernetes.io/managed-by"],
        "portolan.dev"
    );
    assert_eq!(object["metadata"]["ownerReferences"][0]["uid"], "uid-edge");
    assert_eq!(
        serde_json::json!([object["addressType"], object["ports"], object["endpoints"]]),
        serde_json::json!([
            "IPv4",
            [{"name": "tcp-80", "protocol": "TCP", "port": 8080}],
            [{
                "addresses": ["10.40.1.1"],
                "conditions": {"ready": true, "serving": true, "terminating": false},
                "nodeName": "node-a",
            }],
        ])
    );
}

#[test]
fn slices_follow_the_endpoints_and_are_written_once() {
    let mut cluster = served(&format!("{CART}, {{name: till, port: 80}}"));
    assert_eq!(write(&mut cluster), [format!("+{SLICE}")]);
    assert_eq!(write(&mut cluster), [""; 0]);
    // The same endpoints under another name of the slice.
    cluster.delete(Kind::EndpointSlice, "shop/cart-1");
    assert_eq!(write(&mut cluster), [format!("+{SLICE}")]);
    let gone = ", zone: z, conditions: {ready: false, serving: true, terminating: true}";
    cluster.apply(&slice("cart-2", "cart", &[endpoint(1, "node-a", gone)]));
    assert_eq!(write(&mut cluster), [format!("+{SLICE}")]);
    // A write that is not wanted any more, before it was done.
    cluster.apply(&slice("cart-2", "cart", &[endpoint(9, "node-a", "")]));
    let wanted = |cluster: &mut Cluster| {
        let (writes, _) = cluster.report();
        writes.into_iter().find(|(name, _)| name == SLICE)
    };
    assert!(matches!(
        wanted(&mut cluster),
        Some((_, Some(Write::Apply(_))))
    ));
    cluster.apply(&slice("cart-2", "cart", &[endpoint(1, "node-a", gone)]));
    assert!(matches!(wanted(&mut cluster), Some((_, None))));
    // Somebody removes it, and it comes again.
    cluster.delete(Kind::EndpointSlice, "shop/gateway-edge-tcp-80-v4-8080");
    assert_eq!(write(&mut cluster), [format!("+{SLICE}")]);
    // Without an endpoint there is no slice.
    cluster.delete(Kind::EndpointSlice, "shop/cart-2");
    cluster.delete(Kind::EndpointSlice, "shop/till-1");
    assert_eq!(write(&mut cluster), [format!("-{SLICE}")]);
}

#[test]
fn another_port_and_the_end_of_the_gateway_remove_slices() {
    let mut cluster = served(CART);
    write(&mut cluster);
    cluster.apply(&gateway("edge", "", "{name: web, protocol: TCP, port: 81}"));
    let other = "EndpointSlice shop/gateway-edge-tcp-81-v4-8080";
    assert_eq!(
        write(&mut cluster),
        [
            format!("+{SERVICE}"),
            format!("-{SLICE}"),
            format!("+{other}")
        ]
    );
    cluster.delete(Kind::Gateway, "shop/edge");
    assert_eq!(
        write(&mut cluster),
        [format!("-{SERVICE}"), format!("-{other}")]
    );
    assert_eq!(write(&mut cluster), [""; 0]);
}

/// The slices that were made are not planned, neither with the Gateway nor as the Service's.
#[test]
fn slices_that_were_made_are_not_served() {
    let mut cluster = served(CART);
    assert_eq!(write(&mut cluster), [format!("+{SLICE}")]);
    let (service, slices) = cluster
        .state
        .service(&crate::testing::name("shop/gateway-edge"));
    assert!(service.is_some_and(|service| !service.is_served()) && slices.is_empty());
    let made = slice(
        "gateway-edge-x",
        "gateway-edge",
        &[endpoint(7, "node-a", "")],
    )
    .replace(
        "labels: {",
        "ownerReferences: [{apiVersion: gateway.networking.k8s.io/v1, kind: Gateway, name: edge, uid: u}], labels: {portolan.dev/gateway: gateway-edge, ",
    );
    assert_eq!(cluster.apply(&made), [""; 0]);
    assert_eq!(write(&mut cluster), ["-EndpointSlice shop/gateway-edge-x"]);
    // An agent that serves no Gateways serves the Service by them.
    let mut converter = Converter::new("node-a");
    let read = converted(&made, &mut converter);
    let Some((Object::EndpointSlice(slice), _)) = read else {
        panic!("{read:?}")
    };
    assert_eq!(
        slice.service,
        Some(crate::testing::name("shop/gateway-edge"))
    );
}

#[test]
fn of_too_many_endpoints_the_ready_ones_stay() {
    let mut cluster = served(CART);
    let all = (0..1500).map(|n| {
        let ready = n >= 600;
        format!(
            "    - {{addresses: [10.41.{}.{}], conditions: {{ready: {ready}, serving: true}}}}\n",
            n / 250,
            n % 250 + 1
        )
    });
    cluster.apply(&slice("cart-1", "cart", &all.collect::<Vec<_>>()));
    let (writes, _) = cluster.report();
    let Some((_, Some(Write::Apply(object)))) = writes.iter().find(|(name, _)| name == SLICE)
    else {
        panic!("{writes:?}")
    };
    let endpoints = object["endpoints"].as_array().expect("endpoints");
    let ready = endpoints
        .iter()
        .filter(|one| one["conditions"]["ready"] == true);
    assert_eq!((endpoints.len(), ready.count()), (1000, 900));
}
