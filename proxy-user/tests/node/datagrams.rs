// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Datagrams of all sizes on a node with netfilter rules: small ones bypass the stack, fragments
//! and the first ones pass it, and batches that the kernel splits late (UDP_SEGMENT) do both. Part
//! of a test of `past_the_stack`.

use std::{
    net::UdpSocket,
    time::{Duration, Instant},
};

use nix::sys::socket::{setsockopt, sockopt::UdpGsoSegment};

use crate::{
    agent::Agent,
    connection::{ask, asking_at, receive},
    past_the_stack::RENEWALS,
    world::World,
};

fn wait_until_past(world: &World, agent: &Agent, socket: &UdpSocket) {
    agent.eventually("datagrams leave past the stack", || {
        ask(socket, "question");
        let before = world.forwarded();
        (0..20).for_each(|_| ask(socket, "question"));
        world.forwarded() - before <= RENEWALS
    });
}

const SEGMENT: usize = 500;

/// Sends ten datagrams in one call; each one is answered separately.
fn ask_in_a_batch(socket: &UdpSocket) {
    setsockopt(socket, UdpGsoSegment, &(SEGMENT as i32)).expect("UDP_SEGMENT");
    let batch: Vec<u8> = (0..10 * SEGMENT).map(|at| (at / SEGMENT) as u8).collect();
    socket.send(&batch).expect("sent");
    setsockopt(socket, UdpGsoSegment, &0).expect("UDP_SEGMENT");
    let mut seen = [false; 10];
    let mut answer = [0; 65_536];
    while seen.contains(&false) {
        let length = receive(socket, &mut answer);
        assert_eq!(length, SEGMENT);
        let number = answer[0];
        assert!(answer[..length].iter().all(|byte| *byte == number));
        seen[usize::from(number)] = true;
    }
}

/// Sends a datagram that is larger than the MTU.
fn ask_in_fragments(socket: &UdpSocket) {
    let text: Vec<u8> = (0..4_000_u32).map(|at| (at % 251) as u8).collect();
    socket.send(&text).expect("sent");
    let mut answer = [0; 65_536];
    let length = receive(socket, &mut answer);
    assert_eq!(answer[..length], text);
}

/// The server answers the service of [`crate::objects::questions`].
pub(crate) fn small_fragmented_and_batched_datagrams_pass_renewals(world: &World, agent: &Agent) {
    for to in ["172.30.1.9:53", "10.40.1.20:8080"] {
        let socket = asking_at(&world.client, to);
        wait_until_past(world, agent, &socket);
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(10) {
            ask_in_a_batch(&socket);
            ask_in_fragments(&socket);
            for _ in 0..50 {
                ask(&socket, "question");
            }
        }
        wait_until_past(world, agent, &socket);
    }
}
