// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests for the entries that new maps take over from the previous ones.

use std::{thread, time::Duration};

use datapath::{
    Datapath,
    maps::{FlowTable, pins::generations},
    read::Reader,
};
use linux::PerCpu;
use proxy_common::{
    Backend, BackendId, Counter, FlowEntry, FlowKey, FlowKind, FlowState, Port, Protocol,
    ServiceId, V4, maps,
    traffic::{RefusedKey, Traffic},
};

use crate::{
    open::take_over,
    support::{ENTRY, PinDir, apply, enter, key_of, name, plan, v4},
};

/// The key of the flow from 10.1.9.9 to the service `cart`.
fn original_key() -> FlowKey<V4> {
    key_of(0x0001_0909, Protocol::TCP)
}

/// Returns the original entry of a flow to the service's backend with this id.
fn original(backend: BackendId, generation: u32, service: u32) -> FlowEntry<V4> {
    let entry = FlowEntry {
        address: v4(10, 1, 0, 2),
        service: ServiceId(service),
        backend,
        generation,
        last_seen: 1,
        sequence: 7,
        ..ENTRY
    };
    entry.sealed(&original_key())
}

/// Opens maps that are to take over from these.
fn successor(pins: &PinDir) -> Datapath {
    pins.open_with(|options| options.capacities.flows *= 2)
}

/// Publishes the services. Their order decides the ids of services and backends.
fn publish(datapath: &mut Datapath, first: &[&str]) {
    for service in first.iter().chain(&["cart"]) {
        let (address, endpoints): (V4, &[u8]) = match *service {
            "cart" => (v4(10, 0, 0, 1), &[1, 2]),
            _ => (v4(10, 0, 0, 9), &[7, 8, 9]),
        };
        apply(datapath, &[(name(service), plan(address, endpoints))]);
    }
}

fn backend_of(pins: &PinDir) -> (BackendId, Backend<V4>) {
    let backends = pins.array::<Backend<V4>>(maps::BACKENDS_V4);
    let all = (1..backends.capacity()).map(|id| (BackendId(id), backends.load(id)));
    let mut of_cart = all.filter(|(_, backend)| backend.address == v4(10, 1, 0, 2));
    of_cart.next().expect("published")
}

/// Returns the original entry of the flow.
fn found(flows: &FlowTable<V4>) -> Option<FlowEntry<V4>> {
    flows.lookup(&original_key()).expect("readable")
}

/// Returns maps of a service with a flow to it, their flow table, and the flow's original entry.
fn with_flow() -> (PinDir, FlowTable<V4>, FlowEntry<V4>) {
    let pins = PinDir::new();
    publish(&mut pins.open(), &[]);
    let (old, flow) = (pins.flows(), original(BackendId(1), 0, 1));
    assert!(enter(&old, &original_key(), &flow));
    (pins, old, flow)
}

#[test]
fn a_takeover_of_maps_keeps_a_flows_backend_until_the_flow_ends() {
    let pins = PinDir::new();
    let mut first = pins.open();
    publish(&mut first, &["another"]);
    let (id, backend) = backend_of(&pins);
    let flow = original(id, backend.generation, backend.service.0);
    let old = pins.flows();
    assert!(enter(&old, &original_key(), &flow));
    drop(first);

    let mut second = successor(&pins);
    publish(&mut second, &[]);
    let carried = second.carry_over(Duration::MAX).expect("carried over");
    let carried = carried.expect("all of it");
    assert_eq!((carried.flows, carried.lost), (1, 0));
    let new = pins.flows();
    let there = || found(&new).expect("carried over");
    let (other, same) = backend_of(&pins);
    assert_ne!(other, id, "the ids differ, or this shows nothing");
    assert_eq!(there().backend, other);
    assert_eq!(there().generation, same.generation);
    assert_eq!(there().service, same.service);
    assert!(there().is_whole(&original_key()));
    assert_eq!(there().state, FlowState::ESTABLISHED);

    // The flow ends while both generations of maps exist.
    let mut closed = flow;
    closed.state = closed.state.with(FlowState::RESET);
    assert!(old.update(&original_key(), &closed).expect("stored"));
    second.carry_over(Duration::MAX).expect("carried over");
    assert!(there().state.is_closed(), "{:?}", there());
    take_over(&mut second);
    assert_eq!(found(&new), None);
    assert_eq!(generations(pins.path()).expect("pins").len(), 1);
}

#[test]
fn old_programs_lose_each_flow_that_the_new_ones_have() {
    let (pins, old, flow) = with_flow();
    let mut second = successor(&pins);
    publish(&mut second, &[]);
    second.carry_over(Duration::MAX).expect("carried over");
    assert!(found(&old).is_some());
    second.take_over(Duration::MAX).expect("taken over");
    assert_eq!(found(&old), None);
    let there = found(&pins.flows());
    assert_eq!(there.map(|there| there.state), Some(flow.state));
}

#[test]
fn flows_that_end_after_a_takeover_that_did_not_come_are_not_copied_back() {
    let (pins, old, _) = with_flow();
    let mut second = successor(&pins);
    publish(&mut second, &[]);
    second.carry_over(Duration::MAX).expect("carried over");
    drop(second);
    assert!(old.delete(&original_key()).expect("removed"));

    take_over(&mut pins.open());
    assert_eq!(generations(pins.path()).expect("pins").len(), 1);
    assert_eq!(found(&old), None);
}

#[test]
fn new_flows_avoid_the_tuple_of_a_closed_one_that_old_programs_still_know() {
    let pins = PinDir::new();
    publish(&mut pins.open(), &[]);
    let mut closed = original(BackendId(1), 0, 1);
    closed.state = closed.state.with(FlowState::RESET);
    let mut key = original_key();
    closed.reply_key_into(&original_key(), &mut key);
    let mut reply = closed;
    reply.kind = FlowKind::REPLY;
    let old = pins.flows();
    for (key, entry) in [(original_key(), closed), (key, reply)] {
        assert!(enter(&old, &key, &entry.sealed(&key)));
    }

    let mut second = successor(&pins);
    second.carry_over(Duration::MAX).expect("carried over");
    assert_eq!(pins.flows().lookup(&key).expect("readable"), None);
    let (place, tuple) = key.fingerprint();
    let direct = pins.table::<u32, u32>(maps::DIRECT);
    assert_eq!(direct.lookup(&place).expect("readable"), Some(tuple));
}

#[test]
fn a_flow_that_begins_while_its_tuples_earlier_one_is_copied_stays() {
    let key = |number: u16| {
        let mut key = original_key();
        key.src_port = Port::from_host(number);
        key
    };
    let entry = |number, last| {
        let entry = FlowEntry {
            address: v4(10, 1, 0, last),
            last_seen: u64::from(last),
            ..original(BackendId(1), 0, 1)
        };
        entry.sealed(&key(number))
    };
    let pins = PinDir::new();
    let mut first = pins.open_with(|options| options.capacities.flows *= 4);
    publish(&mut first, &[]);
    drop(first);
    let old = pins.flows();
    let mut second = pins.open_with(|options| options.capacities.flows *= 8);
    publish(&mut second, &[]);
    let mut carry = || second.carry_over(Duration::MAX).expect("carried over");
    // So that the next time begins with the flows.
    carry();
    let new = pins.flows();
    let all = 1..4_000_u16;
    let enters = |number| enter(&old, &key(number), &entry(number, 1));
    assert!(all.clone().all(enters));
    // As programs do: the old ones forget the flow, the new ones begin the next.
    let begin = move |number: &u16| {
        thread::sleep(Duration::from_micros(20));
        old.delete(&key(*number)).expect("removed")
            && enter(&new, &key(*number), &entry(*number, 2))
    };
    let begun: Vec<u16> = thread::scope(|scope| {
        let begun = scope.spawn(move || all.filter(begin).collect());
        while !begun.is_finished() {
            carry();
        }
        begun.join().expect("ended")
    });
    let count = begun.len();
    assert!(count > 100, "{count} began before they were copied");
    let new = pins.flows();
    for number in begun {
        let there = new.lookup(&key(number)).expect("readable");
        assert_eq!(there, Some(entry(number, 2)), "{number}");
    }
}

#[test]
fn counts_port_bits_and_direct_flows_survive_a_takeover_of_maps() {
    let pins = PinDir::new();
    let mut first = pins.open();
    publish(&mut first, &["another"]);
    let (id, backend) = backend_of(&pins);
    let traffic = |pins: &PinDir| -> PerCpu<u32, Traffic> {
        PerCpu::new(pins.pinned(maps::TRAFFIC_V4)).expect("of this type")
    };
    let refused = |pins: &PinDir| -> PerCpu<RefusedKey, u64> {
        PerCpu::new(pins.pinned(maps::REFUSED)).expect("of this type")
    };
    let mut values = traffic(&pins).lookup(&id.0).expect("readable").expect("it");
    for value in &mut values {
        assert_eq!(value.generation, u64::from(backend.generation));
        (value.packets_in, value.bytes_out, value.connections) = (5, 7, 1);
    }
    let cpus = values.len() as u64;
    traffic(&pins).update(&id.0, &values).expect("stored");
    let key = RefusedKey {
        service: backend.service,
        counter: Counter::DroppedSource as u32,
    };
    refused(&pins).enter(&key).expect("entered");
    let counts = vec![3; values.len()];
    refused(&pins).update(&key, &counts).expect("stored");
    pins.array::<u64>(maps::PORTS).set_bits(5, 0x40);
    let direct = |pins: &PinDir| pins.table::<u32, u32>(maps::DIRECT);
    direct(&pins).update(&7, &0x1234).expect("written");
    linux::per_cpu_add(pins.pinned(maps::COUNTERS), &[0, 0, 41]).expect("counted");
    drop(first);

    let mut second = successor(&pins);
    publish(&mut second, &[]);
    second.carry_over(Duration::MAX).expect("carried over");
    take_over(&mut second);
    assert_eq!(pins.array::<u64>(maps::PORTS).load(5) & 0x40, 0x40);
    let sums = linux::per_cpu_sums(pins.pinned(maps::COUNTERS)).expect("readable");
    assert_eq!(sums[2], 41, "counted once");
    let known = direct(&pins).lookup(&7).expect("readable");
    assert_eq!(known, Some(0x1234), "a connection past every service");
    assert_ne!(backend_of(&pins).0, id, "or this shows nothing");
    let counted = Reader::open(pins.path()).and_then(|reader| reader.counted());
    let counted = counted.expect("readable");
    let address = "10.1.0.2:8080".parse().expect("an address");
    let of_it = counted.backends.iter().find(|one| one.address == address);
    let sum = of_it.expect("counted").traffic;
    let found = (sum.packets_in, sum.bytes_out, sum.connections);
    assert_eq!(found, (5 * cpus, 7 * cpus, cpus));
    let service = backend_of(&pins).1.service.0;
    let dropped = (service, Counter::DroppedSource, 3 * cpus);
    assert_eq!(counted.refused, [dropped]);
}
