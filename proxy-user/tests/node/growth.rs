// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Maps that are too small at first, for many services or connections. `PORTOLAN_SCALE_SERVICES`
//! sets a larger number of services, with the default sizes of maps.

use std::{env, sync::atomic::AtomicBool, thread, time::Duration};

use datapath::{Capacities, maps::pinned_capacities};

use crate::{
    agent::Agent,
    connection::{Open, beside},
    objects::{Service, endpoint},
    world::{CART, World},
};

const ENDPOINTS: u32 = 10;
/// The number of services in one manifest file.
const FILE: u32 = 500;
const LIMIT: Duration = Duration::from_secs(900);
/// The time limit of one step that takes no time for each service.
const STEP: Duration = Duration::from_secs(60);

fn cluster_ip(number: u32) -> String {
    let [_, a, b, c] = (number + 1).to_be_bytes();
    format!("172.{}.{b}.{c}", 16 + a)
}

/// A service with ten endpoints: the pod that answers, and nine that are on another node.
fn service(number: u32) -> Service {
    let others = (1..ENDPOINTS).map(|other| {
        let [_, a, b, c] = (number * ENDPOINTS + other).to_be_bytes();
        let mut other = endpoint(&format!("11.{a}.{b}.{c}"));
        other["nodeName"] = "node-b".into();
        other
    });
    let answering = endpoint("10.40.1.20");
    Service::new(&format!("s{number}"), &cluster_ip(number))
        .ports(&[("", "TCP", 80, None)])
        .endpoints([answering].into_iter().chain(others).collect())
}

fn write(world: &World, services: std::ops::Range<u32>) {
    for first in services.clone().step_by(FILE as usize) {
        let all = first..services.end.min(first + FILE);
        let all: Vec<_> = all.map(|number| service(number).to_string()).collect();
        world.write(&format!("many-{first:06}.yaml"), all.join("---\n"));
    }
}

/// The sizes of the maps; None while larger maps are made or take over.
fn settled(world: &World, agent: &Agent) -> Option<Capacities> {
    let log = agent.log();
    let count = |what: &str| log.matches(what).count();
    // Larger maps that turn out to be too small are given up: others are made instead of them.
    let ends = count("took over from the maps") + count("others are made");
    let is_done = count("larger ones are made") == ends;
    let is_alone = world.generations() == 1;
    let pinned = pinned_capacities(world.pins()).expect("pins");
    pinned.filter(|_| is_alone && is_done)
}

#[test]
fn maps_grow_at_once_to_what_many_services_need_and_changes_go_on_meanwhile() {
    let given = env::var("PORTOLAN_SCALE_SERVICES").ok();
    let services = given.as_ref();
    let services = services.map_or(3000, |text| text.parse().expect("a number"));
    let world = World::serving();
    write(&world, 0..200);
    const SMALL: &str =
        "portolan: {maps: {frontends: 1024, records: 1024, slots: 4096, backends: 4096}}\n";
    let agent = world.start_configured(given.map_or(SMALL, |_| ""));
    let mut open = world.connect(CART).expect("an answer");
    let client = &world.client;
    let connecting = |done: &AtomicBool| Open::keep_connecting(client, CART, done);
    let made = beside(connecting, || {
        write(&world, 200..services);
        let served = || agent.metric("portolan_services") == Some(u64::from(services) + 1);
        agent.within(LIMIT, "known", served);
        agent.within(LIMIT, "none failed, no others being made", || {
            let failed = agent.metric("portolan_services_failed");
            failed == Some(0) && settled(&world, &agent).is_some()
        });
        world.publish(Service::new("late", "172.30.2.9"));
        agent.within(STEP, "a new service", || world.answers("172.30.2.9:80"));
    });
    assert!(made > 50, "{made} connections");
    // A second growth is possible: the need is estimated from the services that are already stored.
    let growths = agent.metric("portolan_map_growths_total");
    let growths = growths.expect("a metric");
    assert!((1..=2).contains(&growths), "{growths}");
    // One turn with all these services would take ten times as long. On a busy machine some
    // services arrive only after the larger maps are made.
    let turns = |part| agent.sample(&["portolan_turn_duration_seconds_", "more-to-fill", part]);
    let count = turns("_count{");
    assert!(count > f64::from(services / 600), "{count}");
    // All were shorter than half a second.
    assert_eq!(turns("le=\"0.4096\""), count);
    assert!(world.answers(CART));
    assert_eq!(open.echo("still here"), "still here");
    assert_eq!(agent.health().0, 200);
}

#[test]
fn a_flow_table_grows_before_it_is_full() {
    let world = World::serving();
    world.confine();
    let agent = world.start_configured("portolan: {maps: {flows: 512}}\n");
    let has_grown = || settled(&world, &agent).is_some_and(|sizes| sizes.flows >= 1024);
    // A connection has two flow entries: after 192 the table is three quarters full, then full.
    let mut open: Vec<Open> = Vec::new();
    for number in 0..280 {
        let pause = if number < 180 || has_grown() { 1 } else { 250 };
        thread::sleep(Duration::from_millis(pause));
        let connected = world.connect(CART);
        open.push(connected.unwrap_or_else(|error| panic!("{number}: {error}: {}", agent.log())));
    }
    for (number, open) in open.iter_mut().enumerate() {
        assert_eq!(open.echo("here"), "here", "connection {number}");
    }
    agent.within(STEP, "a larger table", has_grown);
    let sizes = settled(&world, &agent).expect("settled");
    assert_eq!(sizes.flows_v6, 512, "no connection is of IPv6");
}
