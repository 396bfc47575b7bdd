// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Maps that become too small while an agent runs.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use datapath::{
    Capacities,
    maps::{pinned_capacities, pins::generations},
};

use crate::{
    agent::{Agent, within},
    connection::Open,
    objects::service,
    succession::start,
    world::World,
};

const SERVICES: u32 = 100;

const LIMIT: Duration = Duration::from_secs(60);

fn wait(agent: &Agent, is_so: impl FnMut() -> bool) {
    within(LIMIT, "larger maps", agent, is_so);
}

/// The sizes of the maps; None while larger maps are made or take over.
fn settled(world: &World, agent: &Agent) -> Option<Capacities> {
    let log = agent.log();
    let count = |what: &str| log.matches(what).count();
    let is_done = count("larger ones are made") == count("took over from the maps");
    let is_alone = generations(world.pins()).expect("pins").len() == 1;
    let pinned = pinned_capacities(world.pins()).expect("pins");
    pinned.filter(|_| is_alone && is_done)
}

#[test]
fn full_maps_grow_to_hold_new_services_and_no_connection_breaks() {
    let world = World::build();
    world.write("first.yaml", service("first", "172.30.1.1"));
    let agent = start(
        &world,
        "frontends: 64, records: 64, slots: 64, backends: 64, flows: 4096",
    );
    let mut open = world.connect("172.30.1.1:80").expect("an answer");
    let client = world.client();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let connecting = scope.spawn(|| Open::keep_connecting(client, "172.30.1.1:80", &done));
        let address = |number: u32| format!("172.30.2.{}", number + 1);
        for number in 0..SERVICES {
            let name = format!("more-{number}");
            world.write(&format!("{name}.yaml"), service(&name, &address(number)));
        }
        for number in 0..SERVICES {
            wait(&agent, || {
                world.connect(&format!("{}:80", address(number))).is_ok()
            });
        }
        // With the guards, 202 frontends are stored: more than three quarters of 256.
        wait(&agent, || {
            settled(&world, &agent).is_some_and(|grown| grown.frontends >= 512)
        });
        done.store(true, Ordering::Relaxed);
        let made = connecting.join().expect("every connection is made");
        assert!(made > 50, "{made} connections");
    });
    assert_eq!(open.echo("still here"), "still here");
    // The agent looks once a second whether maps must grow.
    let mut grown = None;
    wait(&agent, || {
        let before = grown;
        grown = settled(&world, &agent);
        thread::sleep(Duration::from_secs(2));
        grown.is_some() && grown == before
    });
    assert!(agent.stop().success());

    // The next agent does not make the maps smaller.
    let agent = start(
        &world,
        "frontends: 64, records: 64, slots: 64, backends: 64, flows: 4096",
    );
    assert_eq!(open.echo("and now"), "and now");
    let log = agent.log();
    assert!(!log.contains("took over"), "{log}");
    assert_eq!(settled(&world, &agent), grown);
}

#[test]
fn a_flow_table_grows_before_it_is_full() {
    let world = World::serving();
    let agent = start(&world, "flows: 512");
    // A connection has two flow entries: after 192 the table is three quarters full, after 256 it
    // is full.
    let mut open: Vec<Open> = (0..280)
        .map(|number| {
            let pause = if number < 180 { 1 } else { 250 };
            thread::sleep(Duration::from_millis(pause));
            let connected = world.connect("172.30.1.1:80");
            connected.unwrap_or_else(|error| panic!("{number}: {error}: {}", agent.log()))
        })
        .collect();
    for (number, open) in open.iter_mut().enumerate() {
        assert_eq!(open.echo("here"), "here", "connection {number}");
    }
    wait(&agent, || {
        settled(&world, &agent).is_some_and(|grown| grown.flows >= 1024)
    });
}
