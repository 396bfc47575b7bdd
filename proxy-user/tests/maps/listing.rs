// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests that list and filter half a million flows in real maps with the real command.

use std::{
    fs,
    io::Read,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use proxy_common::{FlowEntry, FlowKey, Port, Protocol, V4, maps};

use crate::support::{ENTRY, PinDir, apply, in_netns, name, plan, program, v4, with_reply};

const FLOWS: u32 = 500_000;
/// The limit for the peak memory of the listing process, in KiB.
const MEMORY: u64 = 100 << 10;
/// The time limit of a list. An optimised program takes a fifth of it, a test build little more.
const PATIENCE: Duration = Duration::from_secs(20);

/// Returns the entries of a flow: original and reply.
fn entries(number: u32) -> [(FlowKey<V4>, FlowEntry<V4>); 2] {
    let [_, b, c, d] = number.to_be_bytes();
    let (client, frontend) = (v4(10, b, c, d), v4(10, 96, 0, 1));
    let port = Port::from_host(80);
    let key = FlowKey::new(client, ENTRY.client_port, frontend, port, Protocol::TCP);
    with_reply(key, ENTRY)
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
    // Not the time that passed: the machine may be busy.
    assert!(Duration::from_millis(10 * ticks) < PATIENCE, "{took:?}");
    assert!(memory > 0 && memory < MEMORY, "{memory} KiB");
    reading.join().expect("read")
}

#[test]
fn half_a_million_flows_are_listed_and_filtered_in_little_memory() {
    in_netns(|| {
        let pins = PinDir::new();
        let mut datapath = pins.open_with(|options| options.capacities.flows = 4 * FLOWS);
        let cart = (name("cart"), plan(v4(10, 96, 0, 1), &[7]));
        apply(&mut datapath, &[cart]);
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
