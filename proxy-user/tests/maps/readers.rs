// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests with readers while the agent writes: the real program picks backends for packets, on each
//! processor in turn, while services and endpoints change. It must never pick another service's
//! backend.

use std::{
    os::fd::AsFd,
    sync::atomic::{AtomicBool, AtomicU32, Ordering},
    thread,
    time::{Duration, Instant},
};

use control::plan::ServicePlan;
use datapath::{Capacities, read::Reader};
use proxy_common::{Backend, Counter, Port, Protocol, Settings, V4, maps};

use crate::support::{SMALL, apply, in_netns, name, plan, v4};

const SERVICES: u8 = 40;
const TIME: Duration = Duration::from_secs(3);
const ETHERNET: usize = 14;
const SHOT: u32 = 2;

/// Returns service n: its cluster IP is 10.96.0.n, and its endpoints have n as third octet.
fn plan_of(service: u8, endpoints: &[u8]) -> ServicePlan {
    let mut plan = plan(v4(10, 96, 0, service), endpoints);
    let port = &mut plan.ports[0];
    port.protocol = Protocol::UDP;
    for backend in &mut port.v4.backends {
        backend.address.octets[2] = service;
        // The port shows whether a value is torn.
        backend.port = Port::from_host(1000 + u16::from(service));
    }
    plan
}

/// With 190 000 clients, there are at least 95 rounds.
const PACKETS_PER_ROUND: u32 = 2_000;

/// A datagram of a client to a service. The frame is addressed to loopback, the interface of test
/// runs; the checksums are not looked at.
fn packet(service: u8, client: u32) -> Vec<u8> {
    let [_, b, c, d] = client.to_be_bytes();
    let mut packet = [[0; 6], [2; 6]].concat();
    packet.extend([8, 0, 0x45, 0, 0, 28, 0, 0, 0x40, 0, 64, 17, 0, 0]);
    packet.extend([172, b, c, d, 10, 96, 0, service]);
    packet.extend([40_000_u16, 80, 8, 0].map(u16::to_be_bytes).as_flattened());
    packet
}

#[test]
fn a_packet_to_a_slot_with_another_services_backend_is_dropped_and_counted() {
    in_netns(|pins| {
        let mut datapath = pins.open();
        datapath.set_settings(&Settings::EMPTY).expect("stored");
        apply(&mut datapath, &[(name("cart"), plan_of(1, &[7]))]);
        let backends = pins.table::<u32, Backend<V4>>(maps::BACKENDS_V4);
        let all = backends.entries().expect("readable").into_iter();
        let mut used = all.filter(|(_, backend)| backend.service.0 != 0);
        let (id, mut torn) = used.next().expect("published");
        torn.service.0 += 1;
        backends.update(&id, &torn).expect("stored");
        let program = datapath.program("ingress").expect("it is loaded");
        let run = linux::test_run(program, &packet(1, 1), &[], 1).expect("runs");
        assert_eq!(run.result, SHOT);
        let counted = Reader::open(pins.path()).and_then(|reader| reader.counters());
        let counted = counted.expect("readable");
        assert_eq!(counted[Counter::DroppedInconsistent as usize], 1);
    });
}

#[test]
fn no_packet_ever_meets_a_torn_or_foreign_value_while_the_agent_writes() {
    in_netns(|pins| {
        // The maps are small, so that ids, records and blocks are often reused.
        let mut datapath = pins.open_with(|options| {
            options.capacities = Capacities {
                flows: 400_000,
                frontends: 64,
                records: 96,
                slots: 256,
                backends: 256,
                ..SMALL
            };
        });
        datapath.set_settings(&Settings::EMPTY).expect("stored");
        let program = datapath.program("ingress").expect("it is loaded");
        let program = program.try_clone_to_owned().expect("a descriptor");

        let stop = AtomicBool::new(false);
        let clients = AtomicU32::new(1);
        let changed = AtomicU32::new(0);
        let (forwarded, left_alone) = (AtomicU32::new(0), AtomicU32::new(0));
        let rounds = thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        let client = clients.fetch_add(1, Ordering::Relaxed);
                        // Waits for the writer: otherwise all clients are used up before it has
                        // changed much.
                        while client > PACKETS_PER_ROUND * (changed.load(Ordering::Relaxed) + 1)
                            && !stop.load(Ordering::Relaxed)
                        {
                            thread::yield_now();
                        }
                        let service = (client % u32::from(SERVICES)) as u8 + 1;
                        let sent = packet(service, client);
                        let run = linux::test_run(program.as_fd(), &sent, &[], 1).expect("runs");
                        let dst = &run.data[ETHERNET + 16..ETHERNET + 20];
                        let port = &run.data[ETHERNET + 22..ETHERNET + 24];
                        if run.result == SHOT || dst == [10, 96, 0, service] {
                            left_alone.fetch_add(1, Ordering::Relaxed);
                            continue;
                        }
                        let port = u16::from_be_bytes([port[0], port[1]]);
                        let found = (dst[..3].to_vec(), port);
                        let expected = (vec![10, 1, service], 1000 + u16::from(service));
                        assert_eq!(found, expected, "service {service} led to {dst:?}");
                        forwarded.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            let writing = scope.spawn(|| {
                let started = Instant::now();
                let mut round = 0u32;
                while (started.elapsed() < TIME || round <= 50)
                    && clients.load(Ordering::Relaxed) < 190_000
                {
                    round += 1;
                    changed.store(round, Ordering::Relaxed);
                    let mut changes = Vec::new();
                    for n in 1..=SERVICES {
                        let r = round.wrapping_mul(31).wrapping_add(u32::from(n) * 7);
                        let endpoints: Vec<u8> = (0..r % 5).map(|k| (r + k) as u8 | 1).collect();
                        let mut plan = plan_of(n, &endpoints);
                        // Some services go and come back, others get another record.
                        if r.is_multiple_of(11) {
                            plan = ServicePlan::default();
                        } else {
                            plan.ports[0].affinity_timeout = r % 3;
                        }
                        changes.push((name(&format!("s{n}")), plan));
                    }
                    // Even rounds apply the changes one by one, odd rounds all at once.
                    let is_odd = round % 2 == 1;
                    let at_once = if is_odd { changes.len() } else { 1 };
                    for changes in changes.chunks(at_once) {
                        apply(&mut datapath, changes);
                    }
                }
                round
            });
            let rounds = writing.join();
            stop.store(true, Ordering::Relaxed);
            rounds
        });
        let rounds = rounds.expect("every apply succeeds");
        let (forwarded, left_alone) = (forwarded.into_inner(), left_alone.into_inner());
        assert!(rounds > 50, "{rounds} rounds of changes");
        assert!(forwarded > 5_000, "{forwarded} forwarded");
        assert!(left_alone > 100, "{left_alone} left alone");
    });
}
