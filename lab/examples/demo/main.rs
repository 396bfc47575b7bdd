// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The demo: the real agent on a node in a network namespace, with the manifests in deploy/demo,
//! and real connections to its services. `cargo xtask demo` runs it.

mod exhibits;
mod print;

use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context, Result, bail};
use clap::Parser;
use lab::{
    cases::{cluster, flows::Flows, format::Flow},
    interrupt::{self, INTERRUPTED},
    node::{
        agent::{Agent, Manifests, Options},
        binary, bpffs,
        cgroup::Cgroup,
        netns,
        settings::SocketBalancing,
        topology::{Plumbing, Topology},
    },
};

use exhibits::{EXHIBITS, NODE, PODS, layout, names};
use print::{new_table, outcome_of};

/// Shows the main job: connections to services' addresses reach pods.
#[derive(Parser)]
#[command(name = "demo")]
struct Arguments {
    /// The agent's binary; default: the one beside the demo
    #[arg(long)]
    binary: Option<PathBuf>,
}

/// The resource version of the Node object in deploy/demo/node.yaml.
const NODE_VERSION: u64 = 1;
/// The folder of manifests; their addresses are what the demo calls.
const MANIFESTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/demo");

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("demo: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// Runs the demo. Returns whether all flows were as expected.
fn run(arguments: &Arguments) -> Result<bool> {
    netns::check_privilege()?;
    bpffs::prepare()?;
    interrupt::catch()?;
    let binary = binary::find(arguments.binary.as_deref())?;
    let endpoints = cluster::endpoints(&read_all(MANIFESTS.as_ref())?, NODE)?;
    let flows: Vec<Flow> = EXHIBITS
        .iter()
        .map(|exhibit| serde_saphyr::from_str(exhibit.flow).context(exhibit.what))
        .collect::<Result<_>>()?;
    let topology = Topology::build(layout(&flows)?, Plumbing::Bridge)?;
    let cgroup = Cgroup::new()?;
    let mut servers = Flows::new(
        &topology,
        &cgroup,
        &endpoints,
        SocketBalancing::Host,
        &INTERRUPTED,
    )?;
    let ranges = ["10.40.0.0/16".parse()?, "fd00:40::/48".parse()?];
    let options = Options {
        binary: &binary,
        node_name: NODE,
        cluster_cidrs: &ranges,
        config: "",
        socket_balancing: SocketBalancing::Host,
        kubeconfig: None,
        cgroup_root: cgroup.path(),
    };
    println!(
        "A node with {} pods, another node and an outside client, each in a network namespace; one agent,\n\
         started from the manifests in {}.\n",
        PODS.len(),
        fs::canonicalize(MANIFESTS)?.display(),
    );
    let manifests = Manifests::Folder(MANIFESTS.as_ref());
    let mut agent = Agent::start(&topology.node, &options, &manifests)?;
    let shown = agent
        .wait_for(NODE_VERSION)
        .context("start the agent")
        .and_then(|()| show(&flows, &mut servers, &agent, &binary));
    shown.inspect_err(|_| {
        for line in agent.log_tail(25) {
            eprintln!("  | {line}");
        }
    })
}

fn show(flows: &[Flow], servers: &mut Flows<'_>, agent: &Agent<'_>, binary: &Path) -> Result<bool> {
    let names = names()?;
    let mut table = new_table(["what was done", "what happened", "the rule behind it", ""]);
    let mut unexpected = Vec::new();
    for (exhibit, flow) in EXHIBITS.iter().zip(flows) {
        let (Some(to), Some(expect)) = (flow.to, &flow.expect) else {
            bail!(
                "{}: the flow says nothing to call or to expect",
                exhibit.what
            );
        };
        let (attempts, verdict) = servers
            .observe(flow, to, expect)
            .with_context(|| exhibit.what.to_owned())?;
        table.add_row([
            format!(
                "{}\n{} -> {to} {}",
                exhibit.what,
                flow.from,
                flow.protocol.name()
            ),
            outcome_of(&attempts, &names),
            exhibit.rule.to_owned(),
            if verdict.is_ok() { "ok" } else { "UNEXPECTED" }.to_owned(),
        ]);
        if let Err(reason) = verdict {
            unexpected.push(format!("{}: {reason}", exhibit.what));
        }
    }
    println!("{table}\n");
    let (pins, program) = (agent.pin_dir().display().to_string(), binary.display());
    let words = ["services", "--pin-dir", &pins];
    let services = agent.namespace().feed(&program.to_string(), &words, "");
    match services {
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

/// Reads all manifests in a folder, as one stream of YAML documents.
fn read_all(folder: &Path) -> Result<String> {
    let mut files: Vec<_> = fs::read_dir(folder)
        .with_context(|| format!("read folder {}", folder.display()))?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<_, _>>()?;
    files.retain(|file| {
        file.extension()
            .is_some_and(|extension| extension == "yaml")
    });
    files.sort();
    let texts: Vec<_> = files
        .iter()
        .map(|file| fs::read_to_string(file).with_context(|| format!("read {}", file.display())))
        .collect::<Result<_>>()?;
    Ok(texts.join("\n---\n"))
}
