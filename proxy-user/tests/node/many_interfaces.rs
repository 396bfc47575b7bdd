// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A node with many interfaces. The kernel takes about 16 ms for each program that is attached to
//! or detached from an interface; the agent does other work in between.

use std::{
    fmt::Write,
    thread,
    time::{Duration, Instant},
};

use crate::{
    agent::Agent,
    objects::{Service, endpoint},
    world::{CART, World},
};

/// Number of interfaces unless the environment's `PORTOLAN_INTERFACES` names another one.
const INTERFACES: u32 = 250;
/// How long it may take to attach to all interfaces and to detach from them.
const LIMIT: Duration = Duration::from_secs(120);
/// How long a probe may wait for its answer.
const PROBE: Duration = Duration::from_millis(1000);

fn interfaces() -> u32 {
    let named = std::env::var("PORTOLAN_INTERFACES");
    named.map_or(INTERFACES, |number| number.parse().expect("a number"))
}

fn build() -> World {
    let world = World::serving();
    let far = world.server.path();
    let mut batch = String::new();
    for number in 0..interfaces() {
        let line = format!("link add many{number} type veth peer name far{number} netns {far}");
        writeln!(batch, "{line}\nlink set many{number} up").expect("a String takes everything");
    }
    world.ip(&batch);
    world
}

fn p99(mut times: Vec<Duration>) -> Duration {
    times.sort();
    println!("{} changes, p50 {:?}", times.len(), times[times.len() / 2]);
    times[times.len() * 99 / 100]
}

/// Takes the service's endpoint away, or, if `number` is odd, adds it again. Returns after what
/// time packets have followed.
fn change_cart(world: &World, agent: &Agent, number: usize) -> Duration {
    let serves = number % 2 == 1;
    let endpoints = serves.then(|| endpoint("10.40.1.20"));
    let cart = Service::new("cart", "172.30.1.1");
    world.publish(cart.endpoints(endpoints.into_iter().collect()));
    let written = Instant::now();
    agent.within(LIMIT, "followed", || world.answers(CART) == serves);
    written.elapsed()
}

/// What the agent does each second for each interface, and for each cgroup that matches a pattern,
/// must not make changes wait. While larger maps take over, packets meet the programs of the
/// smaller ones first.
#[test]
fn changes_reach_packets_at_once_at_many_interfaces_and_while_larger_maps_take_over() {
    let world = build();
    let config = world.configure(
        "portolan: {socketExceptions: ['*mesh*', 'batch-*'], maps: {frontends: 64, records: 64, slots: 64, backends: 64, flows: 4096}}\n",
    );
    let agent = world.spawn(&["--config", &config]);
    agent.within(LIMIT, "it is ready", || agent.health().0 == 200);
    let times = (0..200).map(|number| {
        // At any moment of the second in which the agent looks at its interfaces.
        thread::sleep(Duration::from_millis(23));
        change_cart(&world, &agent, number)
    });
    let steady = p99(times.collect());
    assert!(steady < PROBE, "{steady:?}");

    for number in 0..40 {
        let name = format!("more-{number}");
        let address = format!("172.30.2.{}", number + 1);
        world.publish(Service::new(&name, &address));
    }
    agent.within(LIMIT, "larger maps", || world.generations() > 1);
    let mut times = Vec::new();
    let begun = Instant::now();
    while world.generations() > 1 {
        assert!(begun.elapsed() < LIMIT, "{}", agent.log());
        times.push(change_cart(&world, &agent, times.len()));
        let asked = Instant::now();
        assert!(agent.is_alive(), "{}", agent.log());
        assert!(asked.elapsed() < PROBE, "/livez: {:?}", asked.elapsed());
    }
    println!("taken over after {:?}", begun.elapsed());
    assert!(times.len() > 10, "changes are applied meanwhile: {times:?}");
    assert!(p99(times) < 2 * PROBE);
    // There were many short turns of the agent's loop.
    let turns = |part| agent.sample(&["portolan_turn_duration_seconds_", "more-to-attach", part]);
    let (count, sum) = (turns("_count{"), turns("_sum{"));
    assert!(count > f64::from(interfaces()), "{count}");
    assert!(sum / count < 0.2, "{sum} s");
}
