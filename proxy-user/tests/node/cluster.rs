// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The agent as a client of a real API server: objects made there are served, and nothing is lost
//! while the server is away.

use std::time::Duration;

use proxy_common::Counter;

use crate::{
    agent::{eventually, within},
    objects::service,
    server::prepare,
    world::World,
};

pub(crate) const CART: &str = "172.30.1.1:80";
const MORE: &str = "172.30.1.2:80";

#[test]
fn objects_of_the_api_server_are_served_and_their_changes_followed() {
    let world = World::build();
    let server = prepare(&world);
    let external = |name: &str| {
        format!(
            "{{apiVersion: v1, kind: Service, metadata: {{name: {name}, namespace: shop}}, spec: {{externalIPs: [198.51.100.7], ports: [{{port: 80}}]}}}}"
        )
    };
    server.apply(external("first"));
    server.apply(external("second"));
    let kubeconfig = server.kubeconfig();
    let agent = world.spawn_by(
        &[],
        &["--kubeconfig", &kubeconfig, "--proxy-mode", "nftables"],
    );
    let answers = |to: &str| world.connect(to).is_ok();
    eventually("the first service", &agent, || answers(CART));
    let dropped = || world.count(Counter::DroppedUnallocated);
    assert_eq!(dropped(), 0);
    assert!(!answers("172.30.200.200:80"));
    assert!(
        dropped() > 0,
        "by the range of cluster IPs: {}",
        agent.log()
    );
    server.apply(service("more", "172.30.1.2"));
    eventually("a new service", &agent, || answers(MORE));
    assert!(world.connect("10.40.0.1:30002").is_ok(), "by its node port");
    // This label gives the service to another proxy; without the label, portolan serves it again.
    let label = "label service more -n shop service.kubernetes.io/service-proxy-name";
    server.kubectl(&format!("{label}=other"));
    eventually("it is another's", &agent, || !answers(MORE));
    server.kubectl(&format!("{label}-"));
    eventually("it is ours again", &agent, || answers(MORE));
    server.kubectl("delete service more -n shop");
    eventually("it is deleted", &agent, || !answers(MORE));
    assert!(answers(CART));
    assert!(!agent.log().contains("WARN API server"), "{}", agent.log());

    // The server has events of its own.
    let events = |of: &str, reason: &str| -> Vec<String> {
        let all = server.kubectl(&format!("events --for {of}"));
        let ours = all.lines().filter(|event| event.contains(reason));
        ours.map(str::to_owned).collect()
    };
    let of_second = || events("service/second -n shop", "NotServed");
    // A node waits up to 30 s, in which another could write it.
    let limit = Duration::from_secs(60);
    within(limit, "the event", &agent, || !of_second().is_empty());
    let [taken] = &of_second()[..] else {
        panic!("{:?}", of_second())
    };
    assert!(
        taken.contains("Warning") && taken.contains("198.51.100.7"),
        "{taken}"
    );
    assert_eq!(events("service/first -n shop", "NotServed"), [""; 0]);
    let healthy = events("node/node-a -n default", "ServiceProxyHealthy");
    let is_normal = healthy.iter().all(|event| event.contains("Normal"));
    assert!(is_normal && healthy.len() == 1, "{healthy:?}");
}

#[test]
fn services_are_served_during_an_api_outage_and_updated_after_it() {
    let world = World::build();
    let mut server = prepare(&world);
    let agent = world.follow(&server.kubeconfig());
    let answers = |to: &str| world.connect(to).is_ok();
    eventually("the first service", &agent, || answers(CART));
    let mut open = world.connect(CART).expect("an answer");
    server.kill();
    eventually("it is reported", &agent, || {
        agent.log().contains("WARN API server") && agent.health().1.contains("cannot be followed")
    });
    assert_eq!(agent.health().0, 200, "the datapath is as it was");
    assert!(answers(CART));
    assert_eq!(open.echo("without a server"), "without a server");
    server.revive();
    server.apply(service("more", "172.30.1.2"));
    server.kubectl("delete service cart -n shop");
    eventually("what came", &agent, || answers(MORE));
    eventually("what went", &agent, || !answers(CART));
    eventually("the fault has ended", &agent, || {
        !agent.health().1.contains("cannot be followed")
    });
    assert_eq!(open.echo("its service is gone"), "its service is gone");
}
