// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Benchmark of writing service plans into the maps: a full sync, one change among many services,
//! memory. Needs root. `cargo bench -p proxy-user --bench apply`.

#[path = "support/plan.rs"]
mod plan;
mod support;

use std::{
    fs,
    hint::black_box,
    time::{Duration, Instant},
};

use control::{
    object::ObjectName,
    plan::{FamilyPlan, ServicePlan},
};
use datapath::Datapath;
use lab::node::bpffs::PinDir;
use proxy_common::{FrontendKind, Protocol, V4};

use plan::{family, service};
use support::open;

const RUNS: usize = 10;

fn plan(n: u32, endpoints: u32, first: u32) -> ServicePlan {
    let [_, b, c, d] = n.to_be_bytes();
    let cluster_ip = V4 {
        octets: [10, b, c, d],
    };
    let backends = (first..first + endpoints).map(|k| {
        let [_, b, c, d] = (n * 10 + k).to_be_bytes();
        V4 {
            octets: [11, b, c, d],
        }
    });
    let v4 = family(FrontendKind::ClusterIp, (cluster_ip, 80), backends, 8080);
    ServicePlan {
        guarded_v4: vec![cluster_ip],
        ..service(Protocol::TCP, v4, FamilyPlan::default())
    }
}

fn plans(services: u32, endpoints: u32) -> Vec<(ObjectName, ServicePlan)> {
    (1..=services)
        .map(|n| {
            let name = ObjectName::new("bench", &format!("s{n}"));
            (name, plan(n, endpoints, 0))
        })
        .collect()
}

fn apply(datapath: &mut Datapath, changes: &[(ObjectName, ServicePlan)]) -> Duration {
    let started = Instant::now();
    let result = black_box(datapath.apply(changes));
    let took = started.elapsed();
    assert!(result.failures.is_empty(), "{:?}", result.failures.first());
    took
}

fn print(what: &str, mut times: Vec<Duration>) {
    times.sort();
    let (least, median) = (times[0], times[times.len() / 2]);
    println!("{what:<58} min {least:>10.1?}  median {median:>10.1?}");
}

/// Returns the resident memory of this process in MiB: all of it, and the part without the pages of
/// the kernel's maps.
fn resident() -> (f64, f64) {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let field = |name: &str| -> f64 {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
        kib.unwrap_or(f64::NAN) / 1024.0
    };
    (field("VmRSS:"), field("RssAnon:"))
}

fn main() {
    memory();
    full_sync();
}

fn memory() {
    let pins = PinDir::new();
    let started = Instant::now();
    let mut datapath = open(&pins);
    println!("{:<58} {:?}", "open with no pinned map", started.elapsed());
    apply(&mut datapath, &plans(10_000, 10));
    linux::trim_heap();
    let (all, own) = resident();
    println!(
        "{:<58} {all:.1} MiB, {own:.1} MiB of it private",
        "resident, 10 000 services x 10 endpoints"
    );
}

fn full_sync() {
    let all = plans(50_000, 2);
    let mut times = Vec::new();
    for _ in 0..RUNS {
        let pins = PinDir::new();
        let mut datapath = open(&pins);
        times.push(apply(&mut datapath, &all));
    }
    print("full sync, 50 000 services x 2 endpoints", times);

    let pins = PinDir::new();
    let mut datapath = open(&pins);
    apply(&mut datapath, &all);
    print(
        "nothing changed, all 50 000 handed in",
        (0..RUNS).map(|_| apply(&mut datapath, &all)).collect(),
    );
    let mut times = Vec::new();
    for n in 0..1000u32 {
        let at = (n * 37) % 50_000;
        let (name, _) = &all[at as usize];
        let change = [(name.clone(), plan(at + 1, 2, n % 7 + 1))];
        times.push(apply(&mut datapath, &change));
    }
    print("one endpoint change at 50 000 services", times);
    drop(datapath);
    let started = Instant::now();
    let _datapath = open(&pins);
    println!(
        "{:<58} {:?}",
        "open and adopt 50 000 services",
        started.elapsed()
    );
}
