// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Commands with many services and flows in the maps: their time and memory are limited.

use std::{
    fs,
    io::Read,
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use control::{object::ObjectName, plan::ServicePlan};
use datapath::Capacities;
use lab::load::process::processor_time_of_all;
use proxy_common::{EndpointSet, Prefix, Protocol, Settings};

use crate::support::{
    ENTRY, PinDir, and_reply, apply, backend, enter, in_netns, key_of, plan, run, v4,
};

const SERVICES: u32 = 50_000;
/// The number of endpoints of each service; all of them are counted one by one.
const ENDPOINTS: u32 = 2;
const FLOWS: u32 = 500_000;
/// The limit for the peak memory of a process that lists the flows, in KiB.
const MEMORY: u64 = 100 << 10;

/// Returns service n, with endpoints of its own.
fn service(n: u32) -> (ObjectName, ServicePlan) {
    let [_, b, c, d] = n.to_be_bytes();
    let mut plan = plan(v4(10, b, c, d), &[]);
    plan.guarded_v4 = vec![v4(10, b, c, d)];
    let endpoints = (0..ENDPOINTS).map(|k| {
        let [_, b, c, d] = (n * ENDPOINTS + k).to_be_bytes();
        backend(v4(11, b, c, d), EndpointSet::CLUSTER)
    });
    plan.ports[0].v4.backends = endpoints.collect();
    (ObjectName::new("many", &format!("s{n}")), plan)
}

/// Runs a command of the test build, or of the program that PORTOLAN_MEASURED names, to measure a
/// release. Returns its output, its processor time, and its peak memory in KiB.
fn measured(pins: &PinDir, words: &str) -> (String, f64, u64) {
    let program = std::env::var_os("PORTOLAN_MEASURED");
    let program = program.unwrap_or_else(|| env!("CARGO_BIN_EXE_portolan").into());
    let mut command = Command::new(program);
    command.args(words.split(' ')).arg("--pin-dir");
    command.arg(pins.path()).env_remove("KUBECONFIG");
    command.stdout(Stdio::piped());
    let mut child = command.spawn().expect("it runs");
    let mut stdout = child.stdout.take().expect("its output");
    let reading = thread::spawn(move || {
        let mut output = String::new();
        stdout.read_to_string(&mut output).expect("its output");
        output
    });
    // `getrusage` cannot be used: a child has its parent's peak until it executes its program.
    let status = format!("/proc/{}/status", child.id());
    let (mut memory, mut seconds) = (0, 0.0_f64);
    while child.try_wait().expect("its state").is_none() {
        let text = fs::read_to_string(&status).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let peak = line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok());
        let is_it = text.starts_with("Name:\tportolan\n");
        memory = memory.max(peak.filter(|_| is_it).unwrap_or_default());
        seconds = processor_time_of_all(child.id()).map_or(seconds, |now| now.max(seconds));
        thread::sleep(Duration::from_millis(2));
    }
    // `explain` finds no agent here, and says so by its status.
    let is_well = child.wait().expect("its state").success();
    assert!(is_well || words.starts_with("explain"), "{words}");
    println!("{words}: {seconds:.2} s of the processor, {memory} KiB");
    (reading.join().expect("read"), seconds, memory)
}

#[test]
fn commands_with_many_services_and_flows_take_little_time_and_memory() {
    in_netns(|pins| {
        run("ip link add pod0 type veth peer name far");
        run("ip link set pod0 up");
        run("ip route add 10.40.1.10/32 dev pod0");
        run("ip route add 11.0.0.0/8 dev pod0");
        let mut datapath = pins.open_with(|options| {
            options.capacities = Capacities {
                frontends: 4 * SERVICES,
                records: 4 * SERVICES,
                slots: 4 * ENDPOINTS * SERVICES,
                backends: 2 * ENDPOINTS * SERVICES,
                flows: 4 * FLOWS,
                ..Capacities::default()
            };
        });
        let mut settings = Settings::EMPTY;
        settings.flags |= Settings::DETECTS_PODS;
        settings.pods_v4[0] = Prefix {
            address: v4(10, 40, 0, 0),
            mask: v4(255, 255, 0, 0),
        };
        datapath.set_settings(&settings).expect("settings");
        let table = pins.flows();
        let mut flows = 0;
        for n in 0..FLOWS {
            let [original, reply] = and_reply(key_of(n, Protocol::TCP), ENTRY);
            enter(&table, &reply.0, &reply.1);
            // A key may have the same hash as another one in its sets.
            flows += u32::from(enter(&table, &original.0, &original.1));
        }
        drop(table);

        let check = |words: &str, seconds, lines: u32, expected: &str| {
            let (text, took, memory) = measured(&pins, words);
            let count = text.lines().count();
            assert!(text.contains(expected), "{words}: {text}");
            assert!(count >= lines as usize, "{words}: {count} lines");
            assert!(took < seconds, "{words}: {took}");
            if words.starts_with("flows") {
                assert!(memory > 0 && memory < MEMORY, "{words}: {memory} KiB");
                assert!(lines > 1 || count == 1, "{words}: {count} lines");
            }
        };
        // An optimised program takes a tenth of these seconds, a test build little more.
        for (words, lines, expected) in [
            ("flows --count", 1, &*flows.to_string()),
            ("flows --client 10.1.2.3 --no-headers", 1, "10.1.2.3:40000"),
            ("flows -o table", flows, ""),
            ("flows --sort-by client", flows, ""),
            ("flows -o json", flows, ""),
        ] {
            check(words, 20.0, lines, expected);
        }

        let services: Vec<_> = (1..=SERVICES).map(service).collect();
        apply(&mut datapath, &services);
        drop(services);
        let last = std::net::IpAddr::from(v4(10, 0, 0xc3, 0x50));
        let said = format!("service     many/s{SERVICES}, cluster-ip {last}:80");
        let explain = |to: &str| format!("explain --from 10.40.1.10 --to {to}");
        let by_name = format!("service/many/s{SERVICES}");
        // Work of `explain` that grows with the number of services would take longer.
        for (words, seconds, lines, expected) in [
            (explain(&format!("{last}:80")), 3.0, 1, said.as_str()),
            (explain(&by_name), 3.0, 1, &said),
            ("top".into(), 10.0, SERVICES, "many/s1 "),
            ("top --limit 20".into(), 10.0, 20, "many/s"),
        ] {
            check(&words, seconds, lines, expected);
        }
    });
}
