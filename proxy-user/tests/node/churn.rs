// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Many pods start at once: the time until each pod's interface has its programs.

use std::{
    collections::HashMap,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};

use crate::{attachments::CART, world::World};

const PODS: usize = 100;
const NEW_LINK: u16 = 16;
const LINKS: u32 = 1;

/// Records when the kernel first reported each interface, by index. Ends soon after `done` is set.
fn listen(done: &AtomicBool) -> HashMap<u32, Instant> {
    let mut socket = Socket::new(NETLINK_ROUTE).expect("a socket");
    socket.bind(&SocketAddr::new(0, LINKS)).expect("subscribed");
    socket.set_non_blocking(true).expect("not blocking");
    let mut told = HashMap::new();
    while !done.load(Ordering::Relaxed) {
        let Ok((message, _)) = socket.recv_from_full() else {
            thread::sleep(Duration::from_micros(200));
            continue;
        };
        let word = |at: usize| u32::from_ne_bytes(message[at..at + 4].try_into().expect("4 bytes"));
        if word(4) as u16 == NEW_LINK {
            told.entry(word(20)).or_insert_with(Instant::now);
        }
    }
    told
}

/// Records when each new interface had both programs, by index.
fn watch(first: u32, done: &AtomicBool) -> HashMap<u32, Instant> {
    let mut attached = HashMap::new();
    let mut waiting: Vec<u32> = (first..first + PODS as u32).collect();
    let has = |index: u32| {
        [false, true]
            .iter()
            .all(|egress| linux::query_tcx(index, *egress).is_ok_and(|links| !links.is_empty()))
    };
    while !waiting.is_empty() && !done.load(Ordering::Relaxed) {
        waiting.retain(|index| {
            let attaches = has(*index);
            if attaches {
                attached.insert(*index, Instant::now());
            }
            !attaches
        });
        thread::sleep(Duration::from_micros(500));
    }
    attached
}

#[test]
fn a_hundred_new_interfaces_a_second_all_get_their_programs() {
    const FIRST: u32 = 1000;
    let world = World::serving();
    let agent = world.start(7);
    let far = world.server().path();
    let node = world.node();
    let (done, given_up) = (AtomicBool::new(false), AtomicBool::new(false));
    let (told, attached) = thread::scope(|scope| {
        let told = scope.spawn(|| node.enter(|| listen(&done)));
        let attached = scope.spawn(|| node.enter(|| watch(FIRST, &given_up)));
        let start = Instant::now();
        for pod in 0..PODS as u32 {
            let index = FIRST + pod;
            let batch = format!(
                "link add pod-{index} index {index} type veth peer name far-{index} netns {far}\nlink set pod-{index} up\n"
            );
            node.ip(&batch).expect("an interface");
            let next = start + Duration::from_millis(10) * (pod + 1);
            thread::sleep(next.saturating_duration_since(Instant::now()));
        }
        println!("{PODS} interfaces in {:?}", start.elapsed());
        let deadline = Instant::now() + Duration::from_secs(20);
        while !attached.is_finished() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(50));
        }
        given_up.store(true, Ordering::Relaxed);
        let attached = attached.join().expect("a watcher");
        done.store(true, Ordering::Relaxed);
        let told = told.join().expect("a listener");
        (told.expect("the node"), attached.expect("the node"))
    });
    assert_eq!(attached.len(), PODS, "{}", agent.log());
    let mut waits: Vec<_> = attached
        .iter()
        .map(|(index, at)| at.saturating_duration_since(told[index]))
        .collect();
    waits.sort();
    let [half, most, longest] = [50, 98, 99].map(|at| waits[at]);
    println!(
        "from the kernel's word to both programs: p50 {half:?}, p99 {most:?}, max {longest:?}"
    );
    // The kernel sets the pace: each of an interface's two links takes a grace period, under the
    // lock that is also needed to make interfaces. So the test prints the times and only checks
    // that no interface is forgotten.
    assert!(longest < Duration::from_secs(10), "{waits:?}");
    assert!(world.connect(CART).is_ok());
}
