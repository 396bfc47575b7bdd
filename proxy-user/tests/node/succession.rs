// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An agent that finds maps of other sizes: it takes over their content, and no connection notices.

use std::{
    net::UdpSocket,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use crate::{
    agent::Agent,
    connection::{Open, answer_questions, ask, asking, beside},
    objects::questions,
    world::{CART, World},
};

/// Starts an agent with these sizes of maps.
pub(crate) fn start(world: &World, maps: &str) -> Agent {
    world.confine();
    world.start_configured(&format!("portolan: {{maps: {{{maps}}}}}\n"))
}

/// Waits until only one generation of maps is left.
pub(crate) fn taken_over(world: &World, agent: &Agent) {
    agent.within(Duration::from_secs(20), "taken over", || {
        world.generations() == 1
    });
    agent.says(&["took over from the maps before"]);
    assert!(!agent.log().contains("WARN"), "{}", agent.log());
}

/// Any datagram can begin a flow: the new programs must not take a datagram that the old ones have
/// translated for that of another flow.
fn keep_asking(socket: &UdpSocket, done: &AtomicBool) -> u32 {
    let mut asked = 0_u32;
    while !done.load(Ordering::Relaxed) {
        let begun = Instant::now();
        ask(socket, &asked.to_string());
        asked += 1;
        thread::sleep(Duration::from_millis(5).saturating_sub(begun.elapsed()));
    }
    asked
}

#[test]
fn changed_map_sizes_break_no_old_or_new_connection_and_no_udp_flow() {
    let world = World::serving();
    world.publish(questions());
    answer_questions(&world.server);
    let mut agent = start(&world, "flows: 16384");
    let mut open: Vec<Open> = (0..40)
        .map(|_| world.connect(CART).expect("an answer"))
        .collect();
    let (client, asking) = (&world.client, asking(&world.client));
    let connecting = |done: &AtomicBool| Open::keep_connecting(client, CART, done);
    let asked = beside(
        |done| keep_asking(&asking, done),
        || {
            let made = beside(connecting, || {
                // The flow is established before the takeover begins.
                thread::sleep(Duration::from_millis(100));
                for other in ["flows: 20000, backends: 1024", "flows: 16384"] {
                    assert!(agent.stop().success());
                    agent = start(&world, other);
                    taken_over(&world, &agent);
                    // The log is shown only if the test fails.
                    println!("{}", agent.log());
                    for (number, open) in open.iter_mut().enumerate() {
                        assert_eq!(open.echo(other), other, "connection {number}, {other}");
                    }
                }
            });
            assert!(made > 100, "{made} connections");
        },
    );
    assert!(asked > 50, "{asked} questions");
}
