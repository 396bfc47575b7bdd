// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What belongs to one Gateway is deleted in several orders, beside another Gateway that serves.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use super::{ADDRESS, CART, CLASS, EDGE, gateway, route, start};
use crate::{
    agent::{Agent, eventually},
    connection::Open,
    objects::service,
    world::World,
};

/// The Gateway whose objects are deleted.
const LATE: &str = "198.51.100.8:9001";
const TILL: &str = "{apiVersion: v1, kind: Namespace, metadata: {name: till}}\n---\n";
const GRANT: &str = "{apiVersion: gateway.networking.k8s.io/v1, kind: ReferenceGrant, metadata: {name: routes, namespace: shop}, spec: {from: [{group: gateway.networking.k8s.io, kind: TCPRoute, namespace: till}], to: [{group: '', kind: Service}]}}\n---\n";
/// The maps that hold what is planned.
const PLANNED: [&str; 5] = [
    "frontends_v4",
    "records_v4",
    "slots",
    "backends_v4",
    "names",
];

/// What makes a Gateway of the namespace `shop` serve a Service there by a route of `till`.
fn late() -> String {
    let class = CLASS.replace("name: l4", "name: late");
    let gateway = gateway("late", ", addresses: [{value: 198.51.100.8}]", 9001)
        .replace("gatewayClassName: l4", "gatewayClassName: late")
        .replace(
            "port: 9001",
            "port: 9001, allowedRoutes: {namespaces: {from: All}}",
        );
    let route = route(
        "late",
        "late, namespace: shop",
        "{name: back, namespace: shop, port: 80}",
    )
    .replace(
        "{name: late, namespace: shop}, spec",
        "{name: late, namespace: till}, spec",
    );
    let service = service("back", "172.30.1.50");
    format!("{TILL}{class}{gateway}{route}{GRANT}{service}")
}

/// The agent counts the entries of its maps more often than this.
const COUNTED: Duration = Duration::from_millis(1500);

/// The number of entries of each map that holds what is planned.
fn entries(agent: &Agent) -> BTreeMap<&'static str, u64> {
    let of = |map| {
        let entries = agent.metric(&format!("portolan_map_entries{{map=\"{map}\"}}"));
        (map, entries.unwrap_or_else(|| panic!("no metric of {map}")))
    };
    PLANNED.map(of).into()
}

#[test]
fn deletion_in_several_orders_leaves_nothing_and_disturbs_no_other_gateway() {
    const DELETED: [&str; 6] = [
        "gatewayclass late",
        "gateway late -n shop",
        "tcproute late -n till",
        "service back -n shop",
        "referencegrant routes -n shop",
        "namespace",
    ];
    let world = World::build();
    let (server, agent) = start(&world);
    server.apply(gateway("edge", ADDRESS, 9000) + &route("cart", "edge", CART));
    eventually("the other Gateway", &agent, || world.connect(EDGE).is_ok());
    thread::sleep(COUNTED);
    let before = entries(&agent);
    let client = world.client();
    // Each object is the first and the last once.
    for first in 0..DELETED.len() {
        server.apply(late());
        eventually("the Gateway", &agent, || world.connect(LATE).is_ok());
        eventually("it is counted", &agent, || entries(&agent) != before);
        let mut order = DELETED;
        order.rotate_left(first);
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            let connecting = scope.spawn(|| Open::keep_connecting(client, EDGE, &done));
            for object in order {
                match object {
                    // Nobody here empties and ends namespaces.
                    "namespace" => server.erase("/registry/namespaces/till"),
                    object => _ = server.kubectl(&format!("delete {object}")),
                }
                thread::sleep(Duration::from_millis(100));
            }
            server.kubectl("delete endpointslice -n shop -l kubernetes.io/service-name=back");
            eventually("nothing is left", &agent, || entries(&agent) == before);
            done.store(true, Ordering::Relaxed);
            let made = connecting.join().expect("no connection failed");
            println!("{order:?}: {made} connections meanwhile");
        });
        let services = world.told(&["services"]);
        assert!(
            !services.contains("late") && !services.contains("back"),
            "{services}"
        );
    }
    assert!(!agent.log().contains("could not"), "{}", agent.log());
}

#[test]
fn a_namespace_that_is_being_deleted_is_no_failure() {
    let world = World::build();
    let (server, agent) = start(&world);
    let gateway = gateway("edge", "", 9000).replace("namespace: shop", "namespace: till");
    server.apply(format!("{TILL}{gateway}"));
    let made = || server.try_kubectl("get service gateway-edge -n till");
    eventually("its Service", &agent, || made().is_ok());
    // Nobody here empties the namespace, so this test does, in the worst order.
    server.kubectl("delete namespace till --wait=false");
    server.kubectl("delete service gateway-edge -n till");
    let refused = || {
        let metrics = agent.metrics("/metrics");
        let mut lines = metrics.lines();
        lines.any(|line| line.contains("code=\"403\"") && line.contains("PATCH"))
    };
    eventually("the Service is refused", &agent, refused);
    server.kubectl("delete gateway edge -n till");
    server.erase("/registry/namespaces/till");
    eventually("nothing is left", &agent, || {
        !world.told(&["services"]).contains("gateway:")
    });
    assert!(!agent.log().contains("could not"), "{}", agent.log());
}
