// SPDX-License-Identifier: Apache-2.0 OR MIT
//! With many routes, a change is translated as fast as with few: only what it concerns.

use std::time::Instant;

use super::*;
use crate::planner::tests::scale::assert_linear;

/// A Gateway with `n` listeners, each with a route to a port of its own of one Service, whose slice
/// has many more.
fn with_listeners(n: usize) -> Cluster {
    let flow = |n: usize| {
        let ports = (1..=n).map(|at| format!("{{name: p{at}, protocol: TCP, port: {at}}}"));
        ports.collect::<Vec<_>>().join(", ")
    };
    let ports = flow(n);
    let mut all = vec![
        gateway("edge", ADDRESS, &ports),
        service("wide", "10.96.0.9", "").replace("{name: http, port: 80}", &ports),
        slice("wide-1", "wide", &[endpoint(4, "node-a", "")])
            .replace("{name: http, protocol: TCP, port: 8080}", &flow(40 * n)),
    ];
    all.extend((1..=n).map(|at| {
        let parent = format!("{{name: edge, sectionName: p{at}}}");
        let backend = format!("{{name: wide, port: {at}}}");
        route("TCPRoute", &format!("shop/r{at}"), &parent, &backend)
    }));
    cluster(&all)
}

#[test]
fn four_times_the_listeners_and_routes_take_about_four_times_the_time() {
    let clusters = [125, 500].map(with_listeners);
    let cost = |cluster: &Cluster| {
        let start = Instant::now();
        let plan = cluster.gateway_plan("shop/gateway:edge").plan;
        let taken = start.elapsed();
        assert!(plan.ports.iter().all(|port| port.v4.backends.len() == 1));
        taken
    };
    let [one, four] = &clusters;
    assert_linear("listeners", || cost(one), || cost(four));
}

#[test]
fn of_5000_routes_a_change_of_one_concerns_one_gateway() {
    let listener = |port| format!("{{name: l{port}, protocol: TCP, port: {port}}}");
    let listeners = (1..=50).map(listener).collect::<Vec<_>>().join(", ");
    let to = |gateway: i32, port: i32, backend: &str| {
        let parent = format!("{{name: g{gateway}, sectionName: l{port}}}");
        let name = format!("shop/r{gateway}-{port}");
        route("TCPRoute", &name, &parent, backend)
    };
    let mut all = Vec::new();
    for number in 0..100 {
        let address = format!(", addresses: [{{value: 198.51.100.{number}}}]");
        all.push(gateway(&format!("g{number}"), &address, &listeners));
        all.extend((1..=50).map(|port| to(number, port, CART)));
    }
    let mut cluster = cluster(&all);
    assert_eq!(cluster.report().0.len(), 1 + 5000 + 2 * 100);
    let names = |cluster: &mut Cluster| -> Vec<String> {
        let (writes, _) = cluster.report();
        writes.into_iter().map(|(name, _)| name).collect()
    };
    let changed = to(7, 3, "{name: till, port: 80}");
    assert_eq!(cluster.apply(&changed), ["shop/gateway:g7"]);
    let concerned = "Service shop/gateway-g7, Gateway shop/g7, TCPRoute shop/r7-3";
    assert_eq!(names(&mut cluster).join(", "), concerned);
    // What the server sends because a status was written concerns that object alone.
    for (object, name) in [
        (&changed, "TCPRoute shop/r7-3"),
        (&all[0], "Gateway shop/g0"),
    ] {
        let written = object.replace("\n---", "\nstatus: {parents: [], conditions: []}\n---");
        assert_ne!(written, *object);
        assert_eq!(cluster.apply(&written), [""; 0]);
        assert_eq!(names(&mut cluster), [name]);
    }
}
