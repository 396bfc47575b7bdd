// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the demo prints: the table of flows, commands with their output, and how to look around.

use std::{
    collections::BTreeMap,
    net::IpAddr,
    path::{Path, PathBuf},
};

use anyhow::Result;
use comfy_table::{ContentArrangement, Table, presets::UTF8_FULL_CONDENSED};
use lab::{
    node::{agent::Agent, topology::Topology},
    traffic::probe::{Attempt, Outcome},
};
use proxy_common::maps::LAYOUT_VERSION;

const TABLE_WIDTH: u16 = 150;

pub(crate) fn new_table(header: [&str; 4]) -> Table {
    let mut table = Table::new();
    table
        .load_style(UTF8_FULL_CONDENSED)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_width(TABLE_WIDTH)
        .set_header(header);
    table
}

/// Describes the outcome of a flow's connections for people. `names` are the hosts' names by
/// address.
pub(crate) fn outcome_of(attempts: &[Attempt], names: &BTreeMap<IpAddr, &str>) -> String {
    let name = |ip: IpAddr| names.get(&ip).copied().unwrap_or("a gateway of node-a");
    let mut answered: BTreeMap<&str, usize> = BTreeMap::new();
    let mut seen: BTreeMap<IpAddr, &str> = BTreeMap::new();
    let mut other: BTreeMap<String, usize> = BTreeMap::new();
    for attempt in attempts {
        match &attempt.outcome {
            Outcome::Answered(answer) => {
                *answered.entry(name(answer.by.ip())).or_default() += 1;
                seen.insert(answer.seen.ip(), name(answer.seen.ip()));
            }
            Outcome::Refused => *other.entry("refused".to_owned()).or_default() += 1,
            Outcome::Silence => *other.entry("no answer".to_owned()).or_default() += 1,
            outcome => *other.entry(format!("{outcome:?}")).or_default() += 1,
        }
    }
    let mut lines = Vec::new();
    if !answered.is_empty() {
        let counts: Vec<_> = answered
            .iter()
            .map(|(by, count)| format!("{by}: {count}"))
            .collect();
        lines.push(format!("answered by {}", counts.join(", ")));
        let sources: Vec<_> = seen
            .iter()
            .map(|(ip, who)| format!("{ip} ({who})"))
            .collect();
        lines.push(format!("source seen: {}", sources.join(", ")));
    }
    if !other.is_empty() {
        let slowest = attempts
            .iter()
            .map(|attempt| attempt.after)
            .max()
            .unwrap_or_default();
        lines.extend(
            other
                .iter()
                .map(|(what, count)| format!("{count} {what}, within {slowest:.1?}")),
        );
    }
    lines.join("\n")
}

/// Prints a command and its output, at most `lines` lines of it; None for all.
pub(crate) fn print_command(
    agent: &Agent<'_>,
    program: &str,
    args: &[&str],
    lines: Option<usize>,
) -> Result<()> {
    let output = agent.namespace().feed(program, args, "")?;
    let shown = Path::new(program)
        .file_name()
        .map_or(program.into(), |name| name.to_string_lossy());
    println!("$ {shown} {}", args.join(" "));
    let all: Vec<_> = output.lines().collect();
    let count = lines.unwrap_or(all.len()).min(all.len());
    for line in &all[..count] {
        println!("{line}");
    }
    if count < all.len() {
        println!("... {} more lines", all.len() - count);
    }
    println!();
    Ok(())
}

pub(crate) fn look_around(topology: &Topology, agent: &Agent<'_>, binary: &Path) {
    let (node, pins, binary) = (
        topology.node.path(),
        agent.pin_dir().display(),
        binary.display(),
    );
    let layout = layout_dir(agent);
    println!("\nThe node keeps running. To look around, in another terminal, as root:\n");
    println!("  nsenter --net={node} ip -brief address             # inside the node");
    for (number, pod) in topology.pods.iter().enumerate() {
        println!(
            "  nsenter --net={} bash    # {} (veth{number})",
            pod.path(),
            pod.name()
        );
    }
    println!(
        "  nsenter --net={} bash    # the outside client",
        topology.outside.path()
    );
    println!("  nsenter --net={node} curl -s http://127.0.0.1:10256/healthz");
    for command in ["services", "backends", "flows", "affinity"] {
        println!("  {binary} {command} --pin-dir {pins}");
    }
    println!("  ls {}", layout.display());
    println!(
        "  bpftool map dump pinned {}",
        layout.join("flows_v4").display()
    );
    println!(
        "  edit the manifests in {}: changes are followed",
        agent.manifests().display()
    );
    println!(
        "\nCtrl-C (or kill {}) ends it and removes everything.",
        std::process::id()
    );
}

/// Returns the folder in which the agent's maps are pinned.
pub(crate) fn layout_dir(agent: &Agent<'_>) -> PathBuf {
    agent.pin_dir().join(format!("v{LAYOUT_VERSION}"))
}
