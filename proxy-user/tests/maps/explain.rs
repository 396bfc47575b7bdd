// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests for `portolan explain` with many services in the maps.

use std::{
    process::{Command, Output},
    time::{Duration, Instant},
};

use control::{object::ObjectName, plan::ServicePlan};
use datapath::read::{Asked, By, Reader};
use nix::sys::{
    resource::{UsageWho, getrusage},
    time::TimeValLike,
};
use proxy_common::{Counter, EndpointSet, Prefix, Protocol, Settings};

use crate::support::{PinDir, apply, backend, in_netns, plan, program, run, v4};

const SERVICES: u32 = 50_000;
const ENDPOINTS: u32 = 4;
/// The number of runs; the median counts.
const RUNS: usize = 9;
/// The limit for the median. The program in tests is not optimised, and the machine is busy. Work
/// that grows with the number of services would take seconds.
const LIMIT: Duration = Duration::from_secs(3);

/// Returns `services` services, each with `endpoints` endpoints of its own.
pub(crate) fn plans(services: u32, endpoints: u32) -> Vec<(ObjectName, ServicePlan)> {
    let named = |n| {
        (
            ObjectName::new("many", &format!("s{n}")),
            plan_of(n, endpoints),
        )
    };
    (1..=services).map(named).collect()
}

/// Returns service n, with `endpoints` endpoints of its own.
fn plan_of(n: u32, endpoints: u32) -> ServicePlan {
    let [_, b, c, d] = n.to_be_bytes();
    let mut plan = plan(v4(10, b, c, d), &[]);
    plan.guarded_v4 = vec![v4(10, b, c, d)];
    let port = &mut plan.ports[0];
    port.v4.backends = (0..endpoints)
        .map(|k| {
            let [_, b, c, d] = (n * endpoints + k).to_be_bytes();
            backend(v4(11, b, c, d), EndpointSet::CLUSTER)
        })
        .collect();
    plan
}

/// The processor time of all children so far.
fn spent() -> Duration {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).expect("it is there");
    let times = [usage.user_time(), usage.system_time()];
    let microseconds = times.map(|time| time.num_microseconds().unsigned_abs());
    Duration::from_micros(microseconds.iter().sum())
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

/// Runs the command several times and checks what it prints. Prints and returns the median of the
/// times that it takes.
pub(crate) fn run_often(
    pins: &PinDir,
    arguments: &[&str],
    runs: usize,
    check: impl Fn(&Output),
) -> Duration {
    let before = spent();
    let times = (0..runs).map(|_| {
        let begun = Instant::now();
        let mut command = Command::new(program());
        command.args(arguments).arg("--pin-dir").arg(&pins.0);
        let output = command.env_remove("KUBECONFIG").output().expect("run");
        let took = begun.elapsed();
        check(&output);
        took
    });
    let took = median(times.collect());
    println!(
        "@@ figure {} microseconds {} processor {}",
        arguments.join(" "),
        took.as_micros(),
        ((spent() - before) / runs as u32).as_micros()
    );
    took
}

#[test]
fn one_of_fifty_thousand_services_is_explained_within_three_seconds() {
    in_netns(|| {
        run("ip link add pod0 type veth peer name far");
        run("ip link set pod0 up");
        run("ip route add 10.40.1.10/32 dev pod0");
        run("ip route add 11.0.0.0/8 dev pod0");
        let pins = PinDir::new();
        let mut datapath = pins.open_default();
        let mut settings = Settings::EMPTY;
        settings.flags |= Settings::DETECTS_PODS;
        settings.pods_v4[0] = Prefix {
            address: v4(10, 40, 0, 0),
            mask: v4(255, 255, 0, 0),
        };
        datapath.set_settings(&settings).expect("settings");
        let plans = plans(SERVICES, ENDPOINTS);
        let filled = Instant::now();
        apply(&mut datapath, &plans);
        println!("filled in {:?}", filled.elapsed());
        let last = std::net::IpAddr::from(v4(10, 0, 0xc3, 0x50));
        let asked = Asked {
            protocol: Protocol::TCP,
            client: [10, 40, 1, 10].into(),
            client_port: 0,
            to: (last, 80).into(),
            by: By::Interface(0),
        };
        let times = (0..RUNS).map(|_| {
            let begun = Instant::now();
            let mut reader = Reader::without_names(&pins.0).expect("pins");
            let explained = reader.explain(&asked).expect("readable").expect("IPv4");
            let took = begun.elapsed();
            assert_eq!(explained.counter, Counter::ForwardedNew);
            assert_eq!(explained.to.len(), ENDPOINTS as usize);
            assert_eq!(explained.endpoints.len(), ENDPOINTS as usize);
            took
        });
        let decided = median(times.collect());
        println!(
            "@@ figure explain decided microseconds {}",
            decided.as_micros()
        );
        for to in [format!("{last}:80"), format!("service/many/s{SERVICES}")] {
            let said = format!("service     many/s{SERVICES}, cluster IP {last}:80");
            let arguments = ["explain", "--from", "10.40.1.10", "--to", &to];
            let took = run_often(&pins, &arguments, RUNS, |output| {
                let text = String::from_utf8_lossy(&output.stdout);
                assert!(text.contains(&said), "{text} {output:?}");
            });
            assert!(took < LIMIT, "{took:?}");
        }
        assert!(decided < LIMIT, "{decided:?}");
    });
}
