// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Kubernetes events about Gateways and routes that are not served as their owners may expect.

use std::{thread, time::Duration};

use super::{ADDRESS, CART, EDGE, ELECTED, condition, gateway, route, start};
use crate::{
    agent::{eventually, within},
    server::Server,
    world::World,
};

/// A node waits up to 30 s, in which another could write the event, and then writes one a second.
const LIMIT: Duration = Duration::from_secs(60);
/// Long enough for any event that is written each second.
const MORE: Duration = Duration::from_secs(5);

/// Returns the agent's events about an object, a line each.
fn events(server: &Server<'_>, kind: &str, name: &str) -> Vec<String> {
    let words = format!(
        "get events -n shop --field-selector=reason=NotServed,involvedObject.kind={kind},involvedObject.name={name} --no-headers -o=custom-columns=T:.type,M:.message"
    );
    let lines = server.kubectl(&words);
    lines.lines().map(str::to_owned).collect()
}

#[test]
fn a_missing_backend_and_a_taken_address_get_one_event_each() {
    let world = World::build();
    let (server, agent) = start(&world);
    server.apply(gateway("edge", ADDRESS, 9000) + &route("good", "edge", CART));
    eventually("the first Gateway", &agent, || world.connect(EDGE).is_ok());
    // KUBE: ages are whole seconds.
    thread::sleep(Duration::from_secs(2));
    server.apply(
        gateway("late", ADDRESS, 9000)
            + &gateway("other", ADDRESS, 9001)
            + &route("lost", "other", "{name: none, port: 80}"),
    );
    // The agent looks at them again and again.
    for weight in 1..5 {
        server.kubectl(&format!(
            "annotate tcproute lost -n shop --overwrite weight={weight}"
        ));
        let backend = format!("{{name: cart, port: 80, weight: {weight}}}");
        server.apply(route("late", "late", &backend));
    }
    let of_route = || events(&server, "TCPRoute", "lost");
    let of_gateway_late = || events(&server, "Gateway", "late");
    within(LIMIT, "both events", &agent, || {
        !of_route().is_empty() && !of_gateway_late().is_empty()
    });
    within(ELECTED, "the status", &agent, || {
        let listener = ".status.listeners[0].conditions";
        condition(&server, "gateway late", listener, "Accepted") == "False PortUnavailable"
    });
    thread::sleep(MORE);
    let [about] = &of_route()[..] else {
        panic!("{:?}", of_route())
    };
    assert!(
        about.starts_with("Warning ") && about.contains("there is no Service shop/none"),
        "{about}"
    );
    let [about] = &of_gateway_late()[..] else {
        panic!("{:?}", of_gateway_late())
    };
    assert!(
        about.contains("198.51.100.7") && about.contains("Gateway shop/edge"),
        "{about}"
    );
    // Each line of the log is reported for an event.
    let log = agent.log();
    for said in [
        "there is no Service shop/none",
        "already belongs to Gateway shop/edge",
    ] {
        assert_eq!(log.matches(said).count(), 1, "{said}: {log}");
    }
    for (kind, name) in [
        ("Gateway", "edge"),
        ("TCPRoute", "good"),
        ("Gateway", "other"),
    ] {
        assert_eq!(events(&server, kind, name), Vec::<String>::new());
    }
}
