// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Measures what many agents cost one API server, and themselves: whole agents of portolan beside
//! whole kube-proxies, each on a node of its own, with one kube-apiserver. `cargo xtask bench
//! fleet`; docs/dev/fleet.md says what is measured, and how.

use std::{
    fs,
    path::{Path, PathBuf},
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use lab::{
    load::{
        machine,
        objects::Objects,
        process::{processor_time, processor_time_of_all, resident},
        proxy::Proxy,
        statistics::quantiles,
        table::Table,
    },
    node::{
        agent::{self, Agent, Options},
        api_server::{AGENTS_ACCOUNT, requests},
        bpffs,
        cgroup::Cgroup,
        kube_proxy::KubeProxy,
        netns::NetNs,
        pod::plug,
    },
};
use serde_json::Value;

/// Measures many agents with one API server
#[derive(Parser)]
struct Arguments {
    /// How many agents follow the API server
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u8).range(1..200))]
    agents: u8,
    /// How many services there are, with ten endpoints each
    #[arg(long, default_value_t = 1_000)]
    services: u32,
    /// How many changes of a slice of 100 endpoints are measured
    #[arg(long, default_value_t = 40)]
    changes: u32,
    /// A few agents, services and changes: whether everything works, not how fast it is
    #[arg(long)]
    quick: bool,
    /// The program kube-proxy
    #[arg(long)]
    kube_proxy: PathBuf,
    /// Handed over by `cargo bench`
    #[arg(long, hide = true)]
    bench: bool,
}

/// The address of the server, and that of every node, which only its own loopback has.
const SERVER: &str = "10.251.255.1";
const NODE: &str = "10.251.255.2";
/// The endpoints of a full slice: the default of the controller that makes slices.
const FULL: u32 = 100;
const PATIENCE: Duration = Duration::from_secs(300);
/// From one change to the next: longer than kube-proxy waits between two syncs.
const PAUSE: Duration = Duration::from_millis(1_200);
/// How long the server is away.
const AWAY: Duration = Duration::from_secs(2);

/// The figures of one kind of agents, each with its heading.
type Figures = Vec<(&'static str, f64)>;

fn main() -> Result<()> {
    let mut arguments = Arguments::parse();
    bpffs::prepare()?;
    if arguments.quick {
        (arguments.agents, arguments.services, arguments.changes) = (3, 20, 3);
    }
    let portolan = agent::find()?;
    let server = NetNs::new("server")?;
    server.ip(&format!("link set lo up\naddress add {SERVER}/32 dev lo\n"))?;
    let mut objects = Objects::start(&server, SERVER, NODE)?;
    objects.server().kubectl(&[
        "create",
        "clusterrolebinding",
        "agents",
        "--clusterrole=system:node-proxier",
        &format!("--user={AGENTS_ACCOUNT}"),
    ])?;
    objects.grow(arguments.services, 10)?;
    objects.set_endpoints_of(1, FULL)?;
    println!(
        "{}, {}: {} agents, {} services, {} changes of a slice of {FULL} endpoints",
        machine::today(),
        machine::describe(),
        arguments.agents,
        arguments.services,
        arguments.changes
    );
    let mut measured = |program| measure(&arguments, &server, &mut objects, program);
    let ours = measured(Program::Portolan(&portolan)).context("portolan")?;
    let theirs = measured(Program::KubeProxy(&arguments.kube_proxy)).context("kube-proxy")?;
    let mut table = Table::new(1, ["", "portolan", "kube-proxy"]);
    for ((heading, ours), (_, theirs)) in ours.into_iter().zip(theirs) {
        let figures = [ours, theirs].map(|figure| format!("{figure:.2}"));
        table.row([heading.to_owned()].into_iter().chain(figures));
    }
    println!("\n{table}\n2 passed, 0 failed");
    Ok(())
}

#[derive(Clone, Copy)]
enum Program<'a> {
    Portolan(&'a Path),
    KubeProxy(&'a Path),
}

/// A node with its agent. Dropping it ends the agent.
struct Node<'a> {
    namespace: &'a NetNs,
    proxy: Proxy<'a>,
    _cgroup: Cgroup,
}

impl<'a> Node<'a> {
    fn start(namespace: &'a NetNs, program: Program<'_>, kubeconfig: &Path) -> Result<Self> {
        let cgroup = Cgroup::new()?;
        let proxy = match program {
            Program::Portolan(binary) => {
                let options = Options {
                    config: "portolan: {maps: {flows: 16384}}\n",
                    kubeconfig: Some(kubeconfig),
                    ..Options::new(binary, cgroup.path())
                };
                Proxy::Portolan(Agent::start(namespace, &options, "")?)
            }
            Program::KubeProxy(program) => Proxy::KubeProxy(KubeProxy::start(
                namespace, program, "nftables", None, kubeconfig,
            )?),
        };
        Ok(Self {
            namespace,
            proxy,
            _cgroup: cgroup,
        })
    }

    fn pid(&self) -> u32 {
        self.proxy.pid().unwrap_or_default()
    }

    /// Returns how often the agent has written services of IPv4; 0 before it serves metrics.
    fn syncs(&self) -> f64 {
        self.proxy.syncs(self.namespace).unwrap_or_default()
    }

    /// Returns the bytes that the node has received.
    fn received(&self) -> Result<f64> {
        let words = ["-json", "-stats", "link", "show", "eth0"];
        let shown: Value = serde_json::from_str(&self.namespace.feed("ip", &words, "")?)?;
        let bytes = &shown[0]["stats64"]["rx"]["bytes"];
        bytes.as_f64().context("received bytes")
    }
}

/// Seconds of processor time of the server and of all agents, and bytes that all have received.
type Used = [f64; 3];

fn used(objects: &Objects<'_>, nodes: &[Node<'_>]) -> Result<Used> {
    let agents = nodes.iter().map(|node| processor_time_of_all(node.pid()));
    Ok([
        processor_time(objects.server().pid())?,
        agents.sum::<Result<_>>()?,
        nodes.iter().map(Node::received).sum::<Result<_>>()?,
    ])
}

fn minus(used: Used, before: Used) -> Used {
    std::array::from_fn(|at| used[at] - before[at])
}

fn measure(
    arguments: &Arguments,
    server: &NetNs,
    objects: &mut Objects<'_>,
    program: Program<'_>,
) -> Result<Figures> {
    let mut namespaces = Vec::new();
    for number in 0..arguments.agents {
        let namespace = NetNs::new("agent")?;
        plug(server, &namespace, &[&format!("10.251.1.{number}")])?;
        namespace.ip(&format!("address add {NODE}/32 dev lo\n"))?;
        namespaces.push(namespace);
    }
    let kubeconfig = objects.server().agents_kubeconfig();
    let each = f64::from(arguments.agents);
    let (begun, before) = (Instant::now(), used(objects, &[])?);
    let mut nodes = Vec::new();
    for namespace in &namespaces {
        nodes.push(Node::start(namespace, program, &kubeconfig)?);
    }
    wait_for_syncs(&nodes, &vec![0.0; nodes.len()])?;
    let took = begun.elapsed().as_secs_f64();
    let [of_server, of_agents, received] = minus(used(objects, &nodes)?, before);
    let memory = nodes.iter().map(|node| resident(node.pid()));
    let memory: f64 = memory.sum::<Result<_>>()?;
    let mut figures = Figures::new();
    let mut add = |heading, figure| figures.push((heading, figure));
    add("start of all: until the last serves, s", took);
    add("start of all: server's processor time, s", of_server);
    let (of_agent, kilobytes) = (of_agents / each * 1e3, received / each / 1e3);
    add("start of all: processor time of an agent, ms", of_agent);
    add("start of all: received by an agent, kB", kilobytes);
    add("an agent's resident memory then, MiB", memory / each);

    // Without a look at the metrics, which takes processor time; less what is done if all is idle.
    let changes = f64::from(arguments.changes);
    sleep(PAUSE);
    let before = used(objects, &nodes)?;
    sleep(PAUSE * arguments.changes);
    let idle = minus(used(objects, &nodes)?, before);
    let before = used(objects, &nodes)?;
    for _ in 0..arguments.changes {
        change(objects)?;
        sleep(PAUSE);
    }
    let busy = minus(minus(used(objects, &nodes)?, before), idle);
    let [of_server, of_agents, received] = busy.map(|used| used / changes);
    let mut delays = Vec::new();
    for _ in 0..arguments.changes {
        let before: Vec<_> = nodes.iter().map(Node::syncs).collect();
        let written = Instant::now();
        change(objects)?;
        wait_for_syncs(&nodes, &before)?;
        delays.push(written.elapsed().as_secs_f64() * 1e3);
        sleep(PAUSE);
    }
    let [median, most] = quantiles(delays, [0.5, 1.0]);
    let of_agent = of_agents / each * 1e3;
    add("a change: received by an agent, bytes", received / each);
    add("a change: server's processor time, ms", of_server * 1e3);
    add("a change: processor time of an agent, ms", of_agent);
    add("a change: until the last agent has it, median, ms", median);
    add("a change: until the last agent has it, longest, ms", most);

    let [_, _, before] = used(objects, &nodes)?;
    let log = objects.server().audit_log();
    let heard = fs::metadata(&log).context("the audit log")?.len() as usize;
    let syncs: Vec<_> = nodes.iter().map(Node::syncs).collect();
    objects.server_mut().kill();
    sleep(AWAY);
    let started = Instant::now();
    objects.server_mut().revive()?;
    // The first attempts use a connection that is gone.
    while let Err(error) = change(objects) {
        ensure!(started.elapsed() < PATIENCE, "{error:#}");
    }
    wait_for_syncs(&nodes, &syncs)?;
    let back = started.elapsed().as_secs_f64();
    let [of_server, _, received] = used(objects, &nodes)?;
    // Requests that were refused may come again.
    sleep(PAUSE);
    let text = fs::read_to_string(&log).context("the audit log")?;
    let (lists, refused) = requests(text.get(heard..).unwrap_or_default());
    add(
        "server back: from its start until all have a change, s",
        back,
    );
    add("server back: its processor time until then, s", of_server);
    let (kilobytes, lists) = ((received - before) / each / 1e3, lists / each);
    add("server back: received by an agent, kB", kilobytes);
    add("server back: lists of EndpointSlices by an agent", lists);
    add("server back: answers 429 (too many requests)", refused);
    Ok(figures)
}

/// Replaces the first endpoint of the full slice, as when a pod is replaced.
fn change(objects: &mut Objects<'_>) -> Result<()> {
    objects.swap(0, FULL).map(drop)
}

/// Waits until every agent has written more often than before.
fn wait_for_syncs(nodes: &[Node<'_>], before: &[f64]) -> Result<()> {
    let begun = Instant::now();
    for (node, before) in nodes.iter().zip(before) {
        while node.syncs() <= *before {
            if begun.elapsed() > PATIENCE {
                bail!("the agent {} does not follow", node.pid());
            }
            sleep(Duration::from_millis(5));
        }
    }
    Ok(())
}
