// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What one service costs grows with its size, not with the square of it.

use std::time::{Duration, Instant};

use rstest::rstest;
use serde_json::{Value, json};

use crate::{
    model::Converter,
    planner::{NodeView, claims::Claims, plan_service},
    testing::NODE,
};

/// Returns `n` ports, each with a name and a number of its own.
fn ports(n: usize) -> Vec<Value> {
    let port = |at| json!({"name": format!("p{at}"), "port": 1000 + at, "protocol": "TCP"});
    (0..n).map(port).collect()
}

fn addresses(n: usize) -> impl Iterator<Item = String> {
    (0..n).map(|at| format!("10.{}.{}.1", at / 250, at % 250))
}

fn service(name: &str, ports: &[Value], ranges: usize, external: usize) -> Value {
    let ranges: Vec<_> = addresses(ranges).map(|ip| format!("{ip}/32")).collect();
    let external: Vec<_> = addresses(external).collect();
    let ingress = external.iter().map(String::as_str).chain(["192.0.2.1"]);
    let ingress: Vec<_> = ingress.map(|ip| json!({"ip": ip})).collect();
    json!({
        "metadata": {"name": name, "namespace": "shop"},
        "spec": {
            "type": "LoadBalancer", "clusterIP": "172.30.0.1", "ports": ports,
            "loadBalancerSourceRanges": ranges, "externalIPs": external,
        },
        "status": {"loadBalancer": {"ingress": ingress}},
    })
}

fn slice(at: usize, ports: &[Value], endpoints: usize) -> Value {
    let endpoints = addresses(endpoints).map(|ip| json!({"addresses": [ip]}));
    let endpoints: Vec<_> = endpoints.collect();
    let labels = json!({"kubernetes.io/service-name": "cart"});
    json!({
        "metadata": {"name": format!("cart-{at:05}"), "namespace": "shop", "labels": labels},
        "addressType": "IPv4", "ports": ports, "endpoints": endpoints,
    })
}

/// Returns how long it takes to convert and plan a service of size `n`.
fn cost(what: &str, n: usize) -> Duration {
    let of = |name: &str, usual| if what.contains(name) { n } else { usual };
    let ports = ports(of("ports", 1));
    let services = [
        service("cart", &ports, of("ranges", 0), 2 * of("addresses", 0)),
        service("before", &ports, 0, 0),
    ];
    let services = services.map(|one| serde_json::from_value(one).expect("a Service"));
    let slices = (0..of("slices", 1)).map(|at| slice(at, &ports, of("endpoints", 1)));
    let slices = slices.map(|one| serde_json::from_value(one).expect("an EndpointSlice"));
    let slices: Vec<_> = slices.collect();
    let mut converter = Converter::new(NODE);
    let mut claims = Claims::default();
    let start = Instant::now();
    let [cart, before] = services.map(|one| converter.service(&one).expect("named").0);
    let slices = slices.iter();
    let slices = slices.map(|one| converter.endpoint_slice(one).expect("named").0.into());
    let slices: Vec<_> = slices.collect();
    // Reading so many addresses would hide what planning them costs.
    let start = match what {
        "addresses" => Instant::now(),
        _ => start,
    };
    claims.update(&cart.name, Some(&cart));
    if what == "ports that clash" {
        claims.update(&before.name, Some(&before));
    }
    let node = NodeView {
        answer_ping: true,
        ..NodeView::default()
    };
    let (plan, warnings) = plan_service(&cart, &slices, &node, &claims);
    let taken = start.elapsed();
    assert_eq!(plan.ports.len(), ports.len());
    assert!(warnings.len() <= 4, "{warnings:?}");
    taken
}

#[rstest]
fn four_times_the_size_takes_about_four_times_the_time(
    #[values(
        "ports",
        "ports that clash",
        "ranges",
        "endpoints",
        "slices",
        "addresses"
    )]
    what: &str,
) {
    assert_linear(what, || cost(what, 600), || cost(what, 2400));
}

/// Fails if what is four times as large takes much more than four times as long; the square is 16.
pub(crate) fn assert_linear(what: &str, one: impl Fn() -> Duration, four: impl Fn() -> Duration) {
    let ratio = || {
        let best = |cost: &dyn Fn() -> Duration| (0..3).map(|_| cost()).min().unwrap_or_default();
        best(&four).as_secs_f64() / best(&one).as_secs_f64()
    };
    let mut ratios = Vec::new();
    // Once of five times is enough: the machine may be busy.
    while ratios.last().is_none_or(|last| *last >= 8.0) {
        assert!(ratios.len() < 5, "{what}: {ratios:?}");
        ratios.push(ratio());
    }
}
