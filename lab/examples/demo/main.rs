// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The demo: the real agent on a node in a network namespace, with the manifests in deploy/demo,
//! and the connections of exhibits.yaml to its services. `cargo xtask demo` runs it; with `--keep`
//! the node stays until the program is ended.

use std::{
    collections::BTreeMap, env, fs, net::IpAddr, path::Path, process::ExitCode,
    sync::atomic::Ordering, thread::sleep, time::Duration,
};

use anyhow::{Context, Result, bail};
use comfy_table::{ContentArrangement, Table, presets::UTF8_FULL_CONDENSED};
use lab::{
    cases::{
        cluster,
        flows::Flows,
        format::{Flow, Node},
        hosts::hosts,
        parse::files_in,
    },
    interrupt::{self, INTERRUPTED},
    node::{
        agent::{self, Agent, Options},
        bpffs,
        cgroup::Cgroup,
        settings::SocketBalancing,
        topology::{Plumbing, Topology},
    },
    traffic::probe::{Attempt, Outcome},
};
use serde::Deserialize;

/// The resource version of the Node object in deploy/demo/node.yaml.
const NODE_VERSION: u64 = 1;
/// The folder of manifests; their addresses are what the demo calls.
const MANIFESTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/demo");
const TABLE_WIDTH: u16 = 150;

/// What the demo shows.
#[derive(Deserialize)]
struct Demo {
    node: Node,
    /// The hosts' names, for people to read.
    names: BTreeMap<IpAddr, String>,
    exhibits: Vec<Exhibit>,
}

/// One row of the demo's table: what is done, the flow, and the rule that explains its outcome.
#[derive(Deserialize)]
struct Exhibit {
    what: String,
    flow: Flow,
    rule: String,
}

/// Runs the demo. The exit status is 0 if all flows were as expected.
fn main() -> Result<ExitCode> {
    bpffs::prepare()?;
    interrupt::catch()?;
    let binary = agent::find()?;
    let demo: Demo = serde_saphyr::from_str(include_str!("exhibits.yaml"))?;
    let flows: Vec<_> = demo.exhibits.iter().map(|exhibit| &exhibit.flow).collect();
    let manifests = read_all(MANIFESTS.as_ref())?;
    let endpoints = cluster::endpoints(&manifests, &demo.node.name)?;
    let layout = hosts(&demo.node, &flows, &endpoints);
    let topology = Topology::build(layout, Plumbing::Bridge)?;
    let cgroup = Cgroup::new()?;
    let host = SocketBalancing::Host;
    let mut servers = Flows::new(&topology, &cgroup, &endpoints, host)?;
    let options = Options {
        node_name: &demo.node.name,
        cluster_cidrs: &demo.node.pod_cidrs,
        socket_balancing: host,
        ..Options::new(&binary, cgroup.path())
    };
    println!(
        "A node with its pods, another node and an outside client, each in a network namespace; one agent,\n\
         started from the manifests in {}.\n",
        fs::canonicalize(MANIFESTS)?.display(),
    );
    let mut agent = Agent::start(&topology.node, &options, &manifests)?;
    let started = agent.wait_for(NODE_VERSION).context("start the agent");
    let shown = started.and_then(|()| show(&demo, &mut servers, &agent, &binary));
    let is_expected = shown.inspect_err(|_| {
        for line in agent.log_tail(25) {
            eprintln!("  | {line}");
        }
    })?;
    if env::args().any(|word| word == "--keep") {
        keep(&demo, &topology, &agent, &binary);
    }
    Ok(ExitCode::from(u8::from(!is_expected)))
}

/// Says how to enter the node and its pods, and waits for a signal.
fn keep(demo: &Demo, topology: &Topology, agent: &Agent<'_>, binary: &Path) {
    println!("\nEverything stays until Ctrl+C, which removes it. As root, in another terminal:\n");
    for (ip, name) in demo.names.iter().filter(|(ip, _)| ip.is_ipv4()) {
        if let Some(namespace) = topology.namespace_of(*ip) {
            println!("    nsenter --net={}    # {name}, {ip}", namespace.path());
        }
    }
    println!("\nand there, on the node:\n");
    let explain = "explain --from 10.40.1.9 --to 172.30.0.10:80";
    for words in ["status", "backends shop/web", explain, "trace"] {
        let (binary, pins) = (binary.display(), agent.pin_dir().display());
        println!("    {binary} {words} --pin-dir {pins}");
    }
    while !INTERRUPTED.load(Ordering::Relaxed) {
        sleep(Duration::from_millis(200));
    }
}

fn show(demo: &Demo, servers: &mut Flows<'_>, agent: &Agent<'_>, binary: &Path) -> Result<bool> {
    let mut table = Table::new();
    table
        .load_style(UTF8_FULL_CONDENSED)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_width(TABLE_WIDTH)
        .set_header(["what was done", "what happened", "the rule behind it", ""]);
    let mut unexpected = Vec::new();
    for Exhibit { what, flow, rule } in &demo.exhibits {
        let (Some(to), Some(expect)) = (flow.to, &flow.expect) else {
            bail!("{what}: the flow says nothing to call or to expect");
        };
        let observed = servers.observe(flow, to, expect);
        let (attempts, verdict) = observed.with_context(|| what.clone())?;
        table.add_row([
            format!("{what}\n{} -> {to} {}", flow.from, flow.protocol.name()),
            outcome_of(&attempts, &demo.names),
            rule.clone(),
            if verdict.is_ok() { "ok" } else { "UNEXPECTED" }.to_owned(),
        ]);
        unexpected.extend(verdict.err().map(|reason| format!("{what}: {reason}")));
    }
    println!("{table}\n");
    let (pins, program) = (agent.pin_dir().display().to_string(), binary.display());
    let words = ["services", "--pin-dir", &pins];
    match agent.namespace().feed(&program.to_string(), &words, "") {
        Ok(services) => println!("The services, read from the maps:\n\n{services}"),
        Err(error) => unexpected.push(format!("{error:#}")),
    }
    for reason in &unexpected {
        println!("unexpected: {reason}");
    }
    if unexpected.is_empty() {
        println!("All as it should be.");
    }
    Ok(unexpected.is_empty())
}

/// Describes the outcomes of a flow's connections for people, each with their number.
fn outcome_of(attempts: &[Attempt], names: &BTreeMap<IpAddr, String>) -> String {
    let name = |ip: IpAddr| names.get(&ip).map_or("a gateway of node-a", String::as_str);
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for Attempt { outcome, .. } in attempts {
        let text = match outcome {
            Outcome::Answered(answer) => {
                let (by, seen) = (answer.by.ip(), answer.seen.ip());
                format!("{} answers, and sees {seen} ({})", name(by), name(seen))
            }
            Outcome::Refused => "refused".to_owned(),
            Outcome::Silence => "no answer".to_owned(),
            other => format!("{other:?}"),
        };
        *counts.entry(text).or_default() += 1;
    }
    let line = |(text, count): (&String, &usize)| format!("{count} x {text}");
    counts.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// Reads all manifests in a folder, as one stream of YAML documents.
fn read_all(folder: &Path) -> Result<String> {
    let files = files_in(folder)?;
    let texts = files
        .iter()
        .map(|file| fs::read_to_string(file).with_context(|| format!("read {}", file.display())));
    Ok(texts.collect::<Result<Vec<_>>>()?.join("\n---\n"))
}
