// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The demo: the real agent on a node in a network namespace, with the manifests in deploy/demo,
//! and real connections to its services. `cargo xtask demo` runs it.

mod exhibits;
mod print;

use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::atomic::Ordering,
    thread,
    time::Duration,
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
use print::{layout_dir, look_around, new_table, outcome_of, print_command};

/// Shows the main job: connections to services' addresses reach pods.
#[derive(Parser)]
#[command(name = "demo")]
struct Arguments {
    /// Leave the node running and print the commands to look around with.
    #[arg(long)]
    keep: bool,
    /// How pods are joined to the node.
    #[arg(long, default_value = "bridge")]
    plumbing: Plumbing,
    /// Folder of manifests; their addresses are what the demo calls.
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/demo"))]
    manifests: PathBuf,
    /// The agent's binary; default: the one beside the demo
    #[arg(long)]
    binary: Option<PathBuf>,
}

/// The resource version of the Node object in deploy/demo/node.yaml.
const NODE_VERSION: u64 = 1;
/// How many lines of a map's content are printed.
const DUMP_LINES: usize = 14;
const DUMPED_MAP: &str = "frontends_v4";

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
    let endpoints = cluster::endpoints(&read_all(&arguments.manifests)?, NODE)?;
    let flows: Vec<Flow> = EXHIBITS
        .iter()
        .map(|exhibit| serde_saphyr::from_str(exhibit.flow).context(exhibit.what))
        .collect::<Result<_>>()?;
    let topology = Topology::build(layout(&flows)?, arguments.plumbing)?;
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
        fs::canonicalize(&arguments.manifests)?.display(),
    );
    let manifests = Manifests::Folder(&arguments.manifests);
    let mut agent = Agent::start(&topology.node, &options, &manifests)?;
    let shown = agent
        .wait_for(NODE_VERSION)
        .context("start the agent")
        .and_then(|()| show(&flows, &mut servers, &agent, &binary));
    let as_expected = match shown {
        Ok(as_expected) => as_expected,
        Err(error) => {
            for line in agent.log_tail(25) {
                eprintln!("  | {line}");
            }
            return Err(error);
        }
    };
    if arguments.keep {
        look_around(&topology, &agent, &binary);
        while !INTERRUPTED.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_millis(100));
        }
        println!("Cleaning up.");
    }
    Ok(as_expected)
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
    let map = layout_dir(agent).join(DUMPED_MAP);
    println!("The map of IPv4 frontends, as any tool can read it:\n");
    print_command(
        agent,
        "bpftool",
        &["map", "dump", "pinned", &map.display().to_string()],
        Some(DUMP_LINES),
    )
    .unwrap_or_else(|error| unexpected.push(format!("{error:#}")));
    println!("The services, read from the maps:\n");
    let pins = agent.pin_dir().display().to_string();
    print_command(
        agent,
        &binary.display().to_string(),
        &["services", "--pin-dir", &pins],
        None,
    )
    .unwrap_or_else(|error| unexpected.push(format!("{error:#}")));
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
