// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The Service that is made for a Gateway without addresses: when it is kept, and its slices.

use serde_json::json;

use super::*;
use crate::{
    model::{Converter, Kind, Object},
    testing::converted,
};

const SLICE: &str = "EndpointSlice shop/gateway-edge-tcp-80-v4-8080";

fn with_parameters() -> String {
    let spec = "controllerName: portolan.dev/l4, parametersRef: {group: a, kind: B, name: c}";
    class("l4", spec)
}

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
    let mut cluster = cluster(&[edge(""), to(backends)]);
    assert_eq!(write(&mut cluster), [format!("+{SERVICE}")]);
    cluster
}

/// A release of the address is worse than a Gateway that is not served for a while.
#[test]
fn a_mistake_does_not_release_the_address() {
    let clash = "{name: web, protocol: TCP, port: 80}, {name: h, protocol: HTTP, port: 80}";
    let parameters = ", infrastructure: {parametersRef: {group: a, kind: B, name: c}}";
    let host_name = ", addresses: [{type: Hostname, value: a.example}]";
    for mistake in [
        with_parameters(),
        gateway("edge", "", clash),
        edge(host_name),
        edge(", addresses: [{value: 198.51.100}]"),
        edge(parameters),
        edge("").replace("gatewayClassName: l4", "gatewayClassName: l5"),
    ] {
        let mut cluster = served(CART);
        write(&mut cluster);
        cluster.apply(&mistake);
        let written = write(&mut cluster);
        assert!(!written.contains(&format!("-{SERVICE}")), "{written:?}");
        // Mended, it is served as before.
        cluster.apply(&(base() + &edge("")));
        write(&mut cluster);
        let port = &cluster.gateway_plan("shop/gateway:edge").plan.ports[0];
        let expected = ["ClusterIp 10.96.0.50:80"];
        assert_eq!(crate::testing::frontends(&port.v4), expected, "{mistake}");
    }
}

#[test]
fn while_its_class_is_gone_all_that_is_written_stays() {
    let mut cluster = served(CART);
    assert_eq!(write(&mut cluster), [format!("+{SLICE}")]);
    cluster.delete(Kind::GatewayClass, "/l4");
    let (writes, _) = cluster.report();
    assert!(writes.iter().all(|(_, write)| write.is_none()));
    cluster.apply(&class("l4", "controllerName: example.net/l7"));
    let written = write(&mut cluster).join(" ");
    assert_eq!(written, format!("-{SERVICE} -{SLICE}"));
}

#[test]
fn a_gateway_of_a_class_with_parameters_says_so() {
    let mut cluster = cluster(&[edge(ADDRESS)]);
    cluster.apply(&with_parameters());
    let said = status(&mut cluster, "Gateway shop/edge");
    let expected = "Accepted=False InvalidParameters, Programmed=False Invalid";
    assert_eq!(conditions(&said), expected);
}

/// Fails unless the status says for this reason that the Gateway has no address.
fn assert_unaddressed(writes: &[(String, Option<Write>)], why: &str) {
    let said = written(writes, "Gateway shop/edge");
    let expected = "Programmed=False AddressNotAssigned";
    assert!(conditions(&said).ends_with(expected), "{said}");
    let message = said["conditions"][1]["message"].as_str();
    assert!(message.is_some_and(|text| text.contains(why)), "{said}");
}

#[test]
fn a_service_of_users_with_that_name_is_left_alone_and_the_status_says_so() {
    let mut cluster = cluster(&[service("gateway-edge", "10.96.0.50", ""), edge("")]);
    let (writes, warnings) = cluster.report();
    assert!(writes.contains(&(SERVICE.to_owned(), None)));
    let expected = "wants a Service of this name";
    assert!(warnings[0].contains(expected), "{warnings:?}");
    assert_unaddressed(&writes, "a Service of users is called gateway-edge");
    cluster.delete(Kind::Service, "shop/gateway-edge");
    let writes = cluster.report().0;
    assert_unaddressed(&writes, "no address from a load balancer yet");
}

#[test]
fn without_the_setting_nothing_is_made_or_removed() {
    let mut cluster = Cluster::new(&base());
    cluster.state.gateways.set_services(false);
    cluster.apply(&(edge("") + &to(CART)));
    assert_unaddressed(&cluster.report().0, "portolan.gatewayServices");
    assert_eq!(write(&mut cluster), [""; 0]);
    // What there is of another time stays.
    let mut cluster = served(CART);
    write(&mut cluster);
    cluster.state.gateways.set_services(false);
    cluster.apply(&edge(ADDRESS));
    assert_eq!(write(&mut cluster), [""; 0]);
}

#[test]
fn labels_that_somebody_removes_are_put_back_and_it_is_served_meanwhile() {
    let mut cluster = cluster(&[edge(""), to(CART)]);
    let mut made = written(&cluster.report().0, SERVICE);
    made["spec"]["clusterIP"] = "10.96.0.50".into();
    made["metadata"]["labels"] = json!({});
    cluster.apply(&format!("{made}\n---\n"));
    let port = &cluster.gateway_plan("shop/gateway:edge").plan.ports[0];
    let expected = ["ClusterIp 10.96.0.50:80"];
    assert_eq!(crate::testing::frontends(&port.v4), expected);
    let written = write(&mut cluster);
    assert!(written.contains(&format!("+{SERVICE}")), "{written:?}");
}

#[test]
fn the_service_has_slices_of_all_backends_with_a_weight() {
    let refs = format!("{CART}, {{name: till, port: 80, weight: 0}}");
    let mut cluster = served(&refs);
    let (writes, _) = cluster.report();
    let is_slice = |(name, _): &&(String, _)| name.starts_with("EndpointSlice");
    assert_eq!(writes.iter().filter(is_slice).count(), 1);
    let object = written(&writes, SLICE);
    let labels = &object["metadata"]["labels"];
    assert_eq!(labels["kubernetes.io/service-name"], "gateway-edge");
    let manager = &labels["endpointslice.kubernetes.io/managed-by"];
    assert_eq!(manager, "portolan.dev");
    assert_eq!(object["metadata"]["ownerReferences"][0]["uid"], "uid-edge");
    let port = json!({"name": "tcp-80", "protocol": "TCP", "port": 8080});
    let conditions = json!({"ready": true, "serving": true, "terminating": false});
    let one = json!({"addresses": ["10.40.1.1"], "conditions": conditions, "nodeName": "node-a"});
    assert_eq!(object["ports"], json!([port]));
    assert_eq!(object["endpoints"], json!([one]));
    assert_eq!(object["addressType"], "IPv4");
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
    let other = written(&cluster.report().0, SLICE);
    cluster.apply(&slice("cart-2", "cart", &[endpoint(1, "node-a", gone)]));
    assert_eq!(about(&mut cluster, SLICE), Some(None));
    // Somebody changes it, or removes it, and it comes again.
    cluster.apply(&format!("{other}\n---\n"));
    assert_eq!(write(&mut cluster), [format!("+{SLICE}")]);
    cluster.delete(Kind::EndpointSlice, "shop/gateway-edge-tcp-80-v4-8080");
    assert_eq!(write(&mut cluster), [format!("+{SLICE}")]);
    // Without an endpoint there is no slice.
    cluster.delete(Kind::EndpointSlice, "shop/cart-2");
    cluster.delete(Kind::EndpointSlice, "shop/till-1");
    assert_eq!(write(&mut cluster), [format!("-{SLICE}")]);
}

#[test]
fn another_port_replaces_slices_and_the_end_of_the_gateway_removes_nothing() {
    let mut cluster = served(CART);
    write(&mut cluster);
    cluster.apply(&gateway("edge", "", "{name: web, protocol: TCP, port: 81}"));
    let other = "EndpointSlice shop/gateway-edge-tcp-81-v4-8080";
    let written = write(&mut cluster).join(" ");
    assert_eq!(written, format!("+{SERVICE} -{SLICE} +{other}"));
    cluster.delete(Kind::Gateway, "shop/edge");
    assert_eq!(write(&mut cluster), [""; 0]);
}

/// The slices that were made are not planned, neither with the Gateway nor as the Service's.
#[test]
fn slices_that_were_made_are_not_served() {
    let mut cluster = served(CART);
    assert_eq!(write(&mut cluster), [format!("+{SLICE}")]);
    let name = crate::testing::name("shop/gateway-edge");
    let (service, slices) = cluster.state.service(&name);
    assert!(service.is_some_and(|service| !service.is_served()) && slices.is_empty());
    let made = made_slice("gateway-edge-x", &[endpoint(7, "node-a", "")]);
    assert_eq!(cluster.apply(&made), [""; 0]);
    assert_eq!(write(&mut cluster), ["-EndpointSlice shop/gateway-edge-x"]);
    // An agent that serves no Gateways serves the Service by them.
    let mut converter = Converter::new("node-a");
    let read = converted(&made, &mut converter);
    let Some((Object::EndpointSlice(slice), _)) = read else {
        panic!("{read:?}")
    };
    assert_eq!(slice.service, Some(name));
}

#[test]
fn of_too_many_endpoints_the_ready_ones_stay() {
    let mut cluster = served(CART);
    let all = (0..1500).map(|n| {
        let (ready, net, last) = (n >= 600, n / 250, n % 250 + 1);
        format!("    - {{addresses: [10.41.{net}.{last}], conditions: {{ready: {ready}, serving: true}}}}\n")
    });
    cluster.apply(&slice("cart-1", "cart", &all.collect::<Vec<_>>()));
    let object = written(&cluster.report().0, SLICE);
    let endpoints = object["endpoints"].as_array().expect("endpoints");
    let ready = |one: &&Value| one["conditions"]["ready"] == true;
    let ready = endpoints.iter().filter(ready);
    assert_eq!((endpoints.len(), ready.count()), (1000, 900));
}
