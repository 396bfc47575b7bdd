// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What only reads, asked of one agent on one node, part by part.

use crate::{
    agent::Agent,
    maps,
    objects::{Service, pod_endpoint, questions},
    observe, pods, terminal, top, trace,
    world::World,
};

/// The cluster IP and port of a service without endpoints.
pub(crate) const EMPTY: &str = "172.30.1.2:80";

type Part = (&'static str, fn(&World, &Agent));

/// The parts in their order: the first ones count every packet of a service.
const PARTS: [Part; 11] = [
    ("pod names", |world, _| {
        pods::lists_name_the_pods_of_endpoints_and_clients(world);
    }),
    ("top", |world, _| {
        top::top_agrees_exactly_with_what_clients_counted(world);
    }),
    ("metrics", |_, agent| {
        observe::metrics_count_packets_and_changes(agent);
    }),
    ("bpftool", |world, _| {
        maps::bpftool_reads_every_map_with_the_names_of_its_fields(world);
    }),
    ("bad input", |world, _| terminal::bad_input_is_named(world)),
    ("pipes", |world, _| {
        terminal::a_closed_pipe_is_no_error(world);
    }),
    ("terminals", |world, _| {
        terminal::tables_fit_the_terminal(world);
    }),
    ("trace", |world, _| {
        trace::trace_shows_packets_and_calls_before_and_after_translation(world);
    }),
    ("the trace's flags", |world, _| {
        trace::trace_applies_its_flags_its_count_and_its_rate(world);
    }),
    ("a second trace", |world, _| {
        trace::a_second_trace_is_refused_but_not_after_the_first_was_killed(world);
    }),
    ("a packet that cannot be rewritten", |world, agent| {
        observe::a_packet_that_cannot_be_rewritten_is_dropped_and_named(world, agent);
    }),
];

#[test]
fn lists_top_trace_metrics_and_bpftool_agree_with_what_clients_did() {
    let world = World::build();
    let pod = pod_endpoint("10.40.1.20", "cart-a", [true, true, false]);
    for service in [
        Service::new("cart", "172.30.1.1")
            .sticky()
            .endpoints(vec![pod]),
        Service::new("empty", "172.30.1.2").alone(),
        Service::new("local", "172.30.1.3").local().on("node-b"),
        questions(),
    ] {
        world.write(&service.file(), service);
    }
    world.write("web.yaml", pods::WEB);
    let (code, said) = world.refused(&["services"]);
    assert_eq!(code, Some(1), "no agent has run on this node: {said}");
    let agent = world.start_by_stack(7);
    for (what, part) in PARTS {
        println!("== {what}");
        part(&world, &agent);
    }
}
