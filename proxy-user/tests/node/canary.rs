// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An agent beside another proxy serves only the Services of its proxy name.

use proxy_common::Counter;

use crate::{agent::eventually, objects::Service, world::World};

const LABEL: &str = "service.kubernetes.io/service-proxy-name";

#[test]
fn a_canary_serves_its_services_and_leaves_all_others_alone() {
    let world = World::serving();
    let till = Service::new("till", "172.30.1.2");
    world.write("till.yaml", till.clone().labelled(LABEL, "canary"));
    let health = lab::node::options::HEALTH.to_string();
    let flags = ["--service-proxy-name", "canary", "--healthz-bind-address"];
    let agent = world.start_with(7, &[&flags[..], &[&health]].concat());
    assert!(world.connect("172.30.1.2:80").is_ok(), "{}", agent.log());
    assert!(world.connect("172.30.1.1:80").is_err(), "the other proxy's");
    assert_eq!(world.count(Counter::RejectedUnknownFlow), 0);
    world.write("till.yaml", till);
    eventually("the other proxy has it back", &agent, || {
        world.connect("172.30.1.2:80").is_err()
    });
    assert!(!agent.log().contains("WARN"), "{}", agent.log());
}
