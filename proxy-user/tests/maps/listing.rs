// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests that list and filter half a million flows in real maps with the real command.

use std::{
    fs,
    io::Read,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use datapath::Capacities;
use proxy_common::{
    BackendId, FlowEntry, FlowKey, FlowState, Port, Protocol, ServiceId, V4,
    flow::{ClientInterface, FlowKind, Offload, SPARE},
    maps,
};

use crate::support::{PinDir, SMALL, in_netns, name, plan, program, v4};

const FLOWS: u32 = 500_000;
/// The limit for the peak memory of the listing process, in KiB.
const MEMORY: u64 = 100 << 10;
/// An optimised program takes a fifth of this; a test build on a busy machine not much more.
const PATIENCE: Duration = Duration::from_secs(20);

/// Returns the entries of a flow: original and reply.
fn entries(number: u32) -> [(FlowKey<V4>, FlowEntry<V4>); 2] {
    let [_, b, c, d] = number.to_be_bytes();
    let (client, frontend, backend) = (v4(10, b, c, d), v4(10, 96, 0, 1), v4(10, 1, 0, 7));
    let (port, at) = (Port::from_host(40_000), Port::from_host(80));
    let key = FlowKey::new(client, port, frontend, at, Protocol::TCP);
    let entry = FlowEntry {
        check: 0,
        kind: FlowKind::ORIGINAL,
        flags: 0,
        port: Port::from_host(8080),
        address: backend,
        masquerade: v4(0, 0, 0, 0),
        client_port: port,
        masquerade_port: Port::ANY,
        service: ServiceId(1),
        backend: BackendId(1),
        generation: 1,
        interface: ClientInterface::SHARED,
        state: FlowState::ESTABLISHED,
        last_seen: 0,
        sequence: 0,
        reuse: 0,
        slot: 0,
        offload: Offload::NONE,
        _pad: SPARE,
    };
    let reply_key = FlowKey::new(backend, entry.port, client, port, Protocol::TCP);
    let reply = FlowEntry {
        kind: FlowKind::REPLY,
        address: frontend,
        port: at,
        ..entry
    };
    [
        (key, entry.sealed(&key)),
        (reply_key, reply.sealed(&reply_key)),
    ]
}

/// Runs the command, checks its time and memory, and returns its output.
fn listed(pins: &PinDir, arguments: &[&str]) -> Vec<u8> {
    let mut command = Command::new(program());
    command
        .arg("flows")
        .args(arguments)
        .arg("--pin-dir")
        .arg(&pins.0);
    let start = Instant::now();
    let mut child = command.stdout(Stdio::piped()).spawn().expect("it runs");
    let mut stdout = child.stdout.take().expect("its output");
    let reading = thread::spawn(move || {
        let mut output = Vec::new();
        stdout.read_to_end(&mut output).expect("its output");
        output
    });
    // `getrusage` cannot be used: a child has its parent's peak until it executes its program.
    let status = format!("/proc/{}/status", child.id());
    let times = format!("/proc/{}/stat", child.id());
    let (mut memory, mut ticks) = (0, 0);
    while child.try_wait().expect("its state").is_none() {
        let text = fs::read_to_string(&status).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let peak = line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok());
        let is_it = text.starts_with("Name:\tportolan\n");
        memory = memory.max(peak.filter(|_| is_it).unwrap_or_default());
        // The times in user space and in the kernel, in hundredths of a second.
        let text = fs::read_to_string(&times).unwrap_or_default();
        let words = text.split_whitespace().skip(13).take(2);
        ticks = words.flat_map(str::parse::<u64>).sum::<u64>().max(ticks);
        thread::sleep(Duration::from_millis(2));
    }
    let took = start.elapsed();
    assert!(child.wait().expect("its state").success());
    println!("{arguments:?}: {took:?}, {ticks}0 ms of the processor, {memory} KiB");
    assert!(took < PATIENCE, "{took:?}");
    assert!(memory > 0 && memory < MEMORY, "{memory} KiB");
    reading.join().expect("read")
}

#[test]
fn half_a_million_flows_are_listed_and_filtered_in_little_memory() {
    in_netns(|| {
        let pins = PinDir::new();
        let mut options = pins.options();
        options.capacities = Capacities {
            flows: 4 * FLOWS,
            ..SMALL
        };
        let mut datapath = datapath::Datapath::open(&options).expect("opens");
        let failures = datapath
            .apply(&[(name("cart"), plan(v4(10, 96, 0, 1), &[7]))])
            .failures;
        assert!(failures.is_empty(), "{failures:?}");
        let (keys, values): (Vec<_>, Vec<_>) = (0..FLOWS).flat_map(entries).unzip();
        let table = pins.table::<FlowKey<V4>, FlowEntry<V4>>(maps::FLOWS_V4);
        assert!(table.update_all(&keys, &values).is_empty());
        drop((keys, values));

        let count = listed(&pins, &["--count"]);
        assert_eq!(String::from_utf8_lossy(&count).trim(), FLOWS.to_string());
        let one = listed(&pins, &["--client", "10.1.2.3", "--no-headers"]);
        let one = String::from_utf8_lossy(&one).into_owned();
        assert_eq!(one.lines().count(), 1, "{one}");
        assert!(one.contains("10.1.2.3:40000"), "{one}");
        for arguments in [
            &["-o", "table"][..],
            &["--sort-by", "client"],
            &["-o", "json"],
        ] {
            let all = listed(&pins, arguments);
            let lines = all.split(|byte| *byte == b'\n').count();
            assert!(lines > FLOWS as usize, "{lines}");
        }
    });
}
