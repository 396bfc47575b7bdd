// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Benchmark of planning and applying: from parsed Kubernetes objects to service plans, and on to
//! the last map write; opening and adopting maps; the memory of the cluster's state. Needs root.
//! Run with `cargo bench -p proxy-user --bench planner`.

use std::time::Duration;

use control::{
    apply::ApplyResult,
    change::{Batch, Change},
    model::{Converter, Object},
    object::ObjectName,
    plan::ServicePlan,
    syncer::{Kernel, Syncer},
    warnings::Warnings,
};
use datapath::{Capacities, Datapath, Options};
use k8s_openapi::api::{core::v1::Service, discovery::v1::EndpointSlice};
use lab::{
    load::{
        manifests::{self, Port},
        process,
    },
    node::bpffs::PinDir,
};
use nix::time::{ClockId, clock_gettime};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

const ROUNDS: usize = 10;

/// The processor time of this thread, which excludes other work of the machine.
const PROCESSOR: ClockId = ClockId::CLOCK_THREAD_CPUTIME_ID;
const ELAPSED: ClockId = ClockId::CLOCK_MONOTONIC;

fn now(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    time.expect("every Linux has this clock").into()
}

/// A kernel that takes plans and stores nothing.
struct Nowhere;

impl Kernel for Nowhere {
    fn apply(&mut self, _: &[(ObjectName, ServicePlan)]) -> ApplyResult {
        ApplyResult::default()
    }
    fn prune(&mut self, _: &std::collections::HashSet<ObjectName>) -> ApplyResult {
        ApplyResult::default()
    }
}

const HTTP: Port<'_> = Port::new(("http", "TCP"), [80, 8080], None);

fn service(n: usize) -> Service {
    let cluster_ip = format!("172.{}.{}.{}", 16 + (n >> 16), (n >> 8) & 0xff, n & 0xff);
    let spec = json!({"clusterIP": cluster_ip, "clusterIPs": [cluster_ip]});
    typed(manifests::service(&format!("service-{n}"), &[HTTP], spec))
}

fn slice(n: usize, endpoints: usize, first: usize) -> EndpointSlice {
    let endpoint = |e: usize| {
        let e = n * endpoints + e + first;
        let address = format!("10.{}.{}.{}", (e >> 16) & 0xff, (e >> 8) & 0xff, e & 0xff);
        json!({
            "addresses": [address], "nodeName": format!("node-{}", e % 100),
            "conditions": {"ready": true, "serving": true, "terminating": false}
        })
    };
    let endpoints = (0..endpoints).map(endpoint);
    typed(manifests::slice(
        &format!("service-{n}"),
        &[HTTP],
        endpoints,
    ))
}

fn typed<T: DeserializeOwned>(object: Value) -> T {
    serde_json::from_value(object).expect("an object of this kind")
}

fn convert_slice(converter: &mut Converter, slice: &EndpointSlice) -> Change {
    let (slice, _) = converter.endpoint_slice(slice).expect("it has a name");
    Change::Upsert(Object::EndpointSlice(slice.into()))
}

/// Makes maps in an empty directory of pins, or opens those that are there, and loads the programs.
/// The maps are large enough for 50 000 services, each with a cluster IP and its guard.
fn open(pins: &PinDir) -> Datapath {
    let options = Options {
        pin_dir: pins.path().to_owned(),
        capacities: Capacities {
            frontends: 131_072,
            records: 131_072,
            slots: 1_048_576,
            backends: 262_144,
            ..Capacities::default()
        },
        ..Options::default()
    };
    Datapath::open(&options)
        .unwrap_or_else(|error| panic!("open the datapath: {error}; the benchmark needs root"))
}

/// Returns the state of a cluster without objects, and what converts its objects.
fn begin() -> (Syncer, Converter) {
    (
        Syncer::new("node-1", Warnings::default()),
        Converter::new("node-1"),
    )
}

fn fill(syncer: &mut Syncer, converter: &mut Converter, objects: &[(Service, EndpointSlice)]) {
    let mut changes = Vec::with_capacity(2 * objects.len());
    for (service, slice) in objects {
        let (service, _) = converter.service(service).expect("it has a name");
        changes.push(Change::Upsert(Object::Service(service.into())));
        changes.push(convert_slice(converter, slice));
    }
    syncer.fold(Batch {
        changes,
        complete: true,
        listed: true,
        ..Batch::default()
    });
}

/// Plans all services, turn by turn; returns how many.
fn sync_all(syncer: &mut Syncer, kernel: &mut impl Kernel) -> usize {
    let mut planned = syncer.sync(kernel).planned;
    while syncer.is_waiting() {
        planned += syncer.sync(kernel).planned;
    }
    planned
}

/// Applies a change of one EndpointSlice.
fn change_one(
    syncer: &mut Syncer,
    converter: &mut Converter,
    kernel: &mut impl Kernel,
    slice: &EndpointSlice,
) {
    syncer.fold(Batch {
        changes: vec![convert_slice(converter, slice)],
        complete: true,
        ..Batch::default()
    });
    assert_eq!(syncer.sync(kernel).planned, 1);
}

/// Returns the resident memory of this process in KiB.
fn resident() -> f64 {
    process::resident(std::process::id()).expect("proc is mounted") * 1024.0
}

fn print(what: &str, mut times: Vec<Duration>) {
    times.sort();
    let (least, median) = (times[0], times[times.len() / 2]);
    let late = times[times.len() * 99 / 100];
    println!(
        "{what}: minimum {least:?}, median {median:?}, p99 {late:?} of {}",
        times.len()
    );
}

/// Measures the change of one endpoint of a service with 10 000, in slices of 100 endpoints.
fn one_of_ten_thousand() {
    const SLICES: usize = 100;
    let pins = PinDir::new();
    let mut datapath = open(&pins);
    let (mut syncer, mut converter) = begin();
    let numbered = |number: usize, replaced: usize| {
        let mut slice = slice(number, 100, 0);
        slice.metadata.name = Some(format!("service-0-{number}"));
        let label = ("kubernetes.io/service-name".into(), "service-0".into());
        slice.metadata.labels = Some([label].into());
        slice.endpoints[replaced % 100].addresses = vec![format!("10.200.0.{}", replaced % 250)];
        slice
    };
    fill(&mut syncer, &mut converter, &[(service(0), numbered(0, 0))]);
    for number in 1..SLICES {
        let changes = vec![convert_slice(&mut converter, &numbered(number, 0))];
        syncer.fold(Batch {
            changes,
            ..Batch::default()
        });
    }
    assert_eq!(syncer.sync(&mut datapath).planned, 1);
    let mut times = Vec::new();
    for round in 1..=1000 {
        let changed = numbered(round % SLICES, round);
        let start = now(ELAPSED);
        change_one(&mut syncer, &mut converter, &mut datapath, &changed);
        times.push(now(ELAPSED) - start);
    }
    print(
        "one endpoint of 10000 of a service, parsed slice to the map write",
        times,
    );
}

/// What a cluster's objects took: all of them, planning all, and each change of one endpoint.
#[derive(Default)]
struct Times {
    full: Vec<Duration>,
    planning: Vec<Duration>,
    one: Vec<Duration>,
}

impl Times {
    fn measure(
        &mut self,
        round: usize,
        objects: &[(Service, EndpointSlice)],
        kernel: &mut impl Kernel,
        clock: ClockId,
    ) {
        let (mut syncer, mut converter) = begin();
        let start = now(clock);
        fill(&mut syncer, &mut converter, objects);
        let filled = now(clock);
        let planned = sync_all(&mut syncer, kernel);
        let end = now(clock);
        self.full.push(end - start);
        self.planning.push(end - filled);
        assert_eq!((planned, syncer.retry_at()), (objects.len(), None));
        for n in 0..100 {
            let changed = slice(n * 499, 2, 1_000_000 + round);
            let start = now(clock);
            change_one(&mut syncer, &mut converter, kernel, &changed);
            self.one.push(now(clock) - start);
        }
    }
}

fn main() {
    // Done first, while the allocator is fresh: the memory of 10 000 services x 10 endpoints.
    let before = resident();
    let (mut syncer, mut converter) = begin();
    for n in 0..10_000 {
        let objects = [(service(n), slice(n, 10, 0))];
        fill(&mut syncer, &mut converter, &objects);
        syncer.sync(&mut Nowhere);
    }
    println!(
        "state of 10000 services x 10 endpoints: {} KiB resident",
        resident() - before
    );
    drop((syncer, converter));

    let objects: Vec<_> = (0..50_000).map(|n| (service(n), slice(n, 2, 0))).collect();
    let (mut plans, mut writes) = (Times::default(), Times::default());
    for round in 0..ROUNDS {
        plans.measure(round, &objects, &mut Nowhere, PROCESSOR);
    }
    let mut adopting = Vec::new();
    for round in 0..ROUNDS {
        let pins = PinDir::new();
        let mut datapath = open(&pins);
        writes.measure(round, &objects, &mut datapath, ELAPSED);
        drop(datapath);
        let start = now(ELAPSED);
        let _adopted = open(&pins);
        adopting.push(now(ELAPSED) - start);
    }
    let all = "50000 services x 2 endpoints, parsed objects to";
    let one = "one endpoint change at 50000 services, parsed object to";
    print("open and adopt 50000 services", adopting);
    print(&format!("{all} the last map write"), writes.full);
    print(&format!("{one} the map write"), writes.one);
    one_of_ten_thousand();
    print(&format!("{all} plans"), plans.full);
    print("  of which claims and plans", plans.planning);
    print(&format!("{one} plan"), plans.one);
}
