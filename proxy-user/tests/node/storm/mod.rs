// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A storm: clients of every kind send requests without a pause while one disturbance follows
//! another. No request may be lost, and no wrong backend may answer: docs/dev/reliability.md.
//! `cargo xtask storm` runs it longer.

mod damage;
mod disturb;
mod kinds;
mod moving;
mod node;
mod record;
mod table;
mod topology;
mod traffic;

use std::{
    env, fs,
    sync::atomic::{AtomicBool, Ordering},
    thread::{self, sleep},
    time::{Duration, Instant},
};

use self::{
    disturb::Disturbance,
    kinds::{ClientKind, Harm, Kind},
    node::Node,
    record::{BETWEEN, Record},
    topology::{STEADY, Topology},
    traffic::Client,
};
use crate::{
    next_layout,
    random::{Random, number, of_today},
    world::World,
};

const SECONDS: u64 = 60;
/// The new connections and sockets a second of all clients together.
const RATE: u64 = 200;
/// The number of kinds of clients that make new ones.
const NEW: u32 = 4;

#[test]
fn no_request_is_lost_or_gets_a_wrong_backend_in_a_storm() {
    let seconds = number("PORTOLAN_STORM_SECONDS").unwrap_or(SECONDS);
    let seed = number("PORTOLAN_STORM_SEED").unwrap_or_else(of_today);
    let rate = number("PORTOLAN_STORM_RATE").unwrap_or(RATE);
    println!("a storm of {seconds} s, seed {seed}: PORTOLAN_STORM_SECONDS, PORTOLAN_STORM_SEED");
    next_layout::binary();
    let world = World::build();
    let place = Topology::build(&world);
    let record = Record::new(STEADY);
    let mut node = Node::start(&world, &place, &record, Random::new(seed));
    let done = AtomicBool::new(false);
    let begun = Instant::now();
    thread::scope(|scope| {
        // Ends the clients even if a disturbance panics.
        let _end = End(&done);
        let clients = ClientKind::ALL.len() as u32 * NEW;
        let pace = Duration::from_secs(1) * clients / rate.max(1) as u32;
        for kind in Kind::ALL {
            for way in ClientKind::ALL {
                let client = Client {
                    kind,
                    way,
                    pace,
                    record: &record,
                    done: &done,
                };
                let home = place.home(way);
                scope.spawn(move || home.run(|| client.run()));
            }
        }
        disturb(&mut node, begun + Duration::from_secs(seconds));
    });
    let report = table::render(&record, begun.elapsed(), seed);
    println!("{report}");
    if let Some(file) = env::var_os("PORTOLAN_STORM_REPORT") {
        fs::write(file, report).expect("the report");
    }
    let failures = record.failures();
    assert!(
        failures.is_empty(),
        "seed {seed}: {} requests were lost or wrong:\n{}",
        failures.len(),
        failures.join("\n")
    );
}

/// Ends the clients when it is dropped.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs one disturbance after another, in a new order each round.
fn disturb(node: &mut Node<'_>, deadline: Instant) {
    const PAUSE: Duration = Duration::from_secs(1);
    let only = env::var("PORTOLAN_STORM_ONLY").ok();
    let is_wanted = |disturbance: &&Disturbance| {
        only.as_ref()
            .is_none_or(|only| disturbance.name.contains(only))
    };
    let all = disturb::ALL.iter().chain(&damage::ALL);
    let all: Vec<&Disturbance> = all.filter(is_wanted).collect();
    let mut next = Vec::new();
    node.settle();
    while Instant::now() < deadline {
        if next.is_empty() {
            next.clone_from(&all);
        }
        let at = node.random.below(next.len() as u64) as usize;
        let disturbance = next.swap_remove(at);
        let begun = Instant::now();
        println!("{}", disturbance.name);
        node.record.enter(disturbance.name, disturbance.harm);
        if (disturbance.run)(node) {
            node.record.done(disturbance.name, begun.elapsed());
        }
        node.record.enter(BETWEEN, Harm::Nothing);
        println!("{}: {:.1?}", disturbance.name, begun.elapsed());
        node.change(true);
        sleep(PAUSE);
        node.settle();
    }
    // Waits for answers in flight.
    sleep(PAUSE);
}
