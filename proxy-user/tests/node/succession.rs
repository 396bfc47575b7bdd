// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An agent that finds maps of other sizes, or of another layout: it takes over their content, and
//! no connection notices.

use std::{
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use datapath::maps::pins::generations;

use crate::{
    agent::{Agent, within},
    connection::{Open, answer_questions, asking},
    next_layout,
    objects::questions,
    world::{BINARY, World},
};

/// Starts an agent with these sizes of maps.
pub(crate) fn start(world: &World, maps: &str) -> Agent {
    world.confine();
    world.start_configured(7, &format!("portolan: {{maps: {{{maps}}}}}\n"))
}

/// Waits until only one generation of maps is left.
pub(crate) fn taken_over(world: &World, agent: &Agent) {
    within(Duration::from_secs(20), "taken over", agent, || {
        generations(world.pins()).expect("pins").len() == 1
    });
    agent.says(&["took over from the maps before"]);
    assert!(!agent.log().contains("WARN"), "{}", agent.log());
}

#[test]
fn changed_map_sizes_break_no_connection() {
    let world = World::serving();
    let first = start(&world, "flows: 2048");
    let mut open: Vec<Open> = (0..40)
        .map(|_| world.connect("172.30.1.1:80").expect("an answer"))
        .collect();
    assert!(first.stop().success());
    let flows = |when: &str| {
        let flows = world.flows();
        let established = flows.iter().filter(|flow| flow.state == "established");
        assert_eq!(established.count(), 40, "{when}: {flows:?}");
    };
    flows("before");
    for other in ["flows: 4096, backends: 1024", "flows: 2048"] {
        let agent = start(&world, other);
        taken_over(&world, &agent);
        flows(other);
        for (number, open) in open.iter_mut().enumerate() {
            assert_eq!(open.echo(other), other, "connection {number}, {other}");
        }
        assert!(world.connect("172.30.1.1:80").is_ok(), "{other}");
        assert!(agent.stop().success());
    }
}

#[test]
fn new_connections_succeed_throughout_a_takeover_of_maps() {
    let world = World::serving();
    let mut agent = start(&world, "flows: 16384");
    let client = world.client();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let connecting = scope.spawn(|| Open::keep_connecting(client, "172.30.1.1:80", &done));
        for round in 0..2 {
            assert!(agent.stop().success());
            agent = start(&world, &format!("flows: {}", 20_000 + round));
            taken_over(&world, &agent);
            // The log is shown only if the test fails.
            println!("{}", agent.log());
        }
        done.store(true, Ordering::Relaxed);
        let made = connecting.join().expect("every connection is made");
        assert!(made > 100, "{made} connections");
    });
}

#[test]
fn upgrade_and_downgrade_of_the_map_layout_break_no_connection() {
    let next = next_layout::binary();
    let world = World::serving();
    world.confine();
    let first = world.start(7);
    let mut open: Vec<Open> = (0..20)
        .map(|_| world.connect("172.30.1.1:80").expect("an answer"))
        .collect();
    assert!(first.stop().success());
    for binary in [next, Path::new(BINARY)] {
        let agent = world.start_other(binary, 7);
        taken_over(&world, &agent);
        for (number, open) in open.iter_mut().enumerate() {
            let said = format!("{}", binary.display());
            assert_eq!(open.echo(&said), said, "connection {number}");
        }
        open.push(world.connect("172.30.1.1:80").expect("an answer"));
        assert!(agent.stop().success());
    }
}

/// Any datagram can begin a flow: the new programs must not take a datagram that the old ones have
/// translated for that of another flow.
#[test]
fn a_udp_flow_gets_every_answer_throughout_a_takeover_of_maps() {
    let world = World::build();
    world.write("questions.yaml", questions());
    answer_questions(world.server());
    let agent = start(&world, "flows: 2048");
    let asking = asking(world.client());
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let talking = scope.spawn(|| {
            let mut asked = 0_u32;
            while !done.load(Ordering::Relaxed) {
                let begun = Instant::now();
                asking.send(&asked.to_ne_bytes()).expect("sent");
                let mut answer = [0; 4];
                let heard = asking.recv(&mut answer);
                assert!(heard.is_ok(), "question {asked}: {heard:?}");
                assert_eq!(u32::from_ne_bytes(answer), asked);
                asked += 1;
                thread::sleep(Duration::from_millis(5).saturating_sub(begun.elapsed()));
            }
            asked
        });
        // The flow is established before the takeover begins.
        thread::sleep(Duration::from_millis(100));
        assert!(agent.stop().success());
        let agent = start(&world, "flows: 4096");
        taken_over(&world, &agent);
        done.store(true, Ordering::Relaxed);
        let asked = talking.join().expect("every question is answered");
        assert!(asked > 50, "{asked} questions");
    });
}
