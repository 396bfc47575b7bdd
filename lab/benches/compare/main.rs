// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Compares portolan, kube-proxy nftables and kube-proxy iptables with a node without a proxy. The
//! proxies run on one node, one after the other, with the same objects of one API server. Called by
//! `cargo xtask lab`.
//!
//! The module `plan` lists the measurements. `packets`, `changes` and `waiting` make them.
//! `results` stores them. `report` and `pictures` show them.

mod changes;
mod packets;
mod pictures;
mod plan;
mod report;
mod results;
mod waiting;
mod world;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use clap::{Parser, ValueEnum};
use lab::{
    interrupt::{self, INTERRUPTED},
    load::{machine, objects::Objects},
    node::{agent, bpffs, topology::Plumbing},
};

use plan::{Cell, ENDPOINT, Measure, Proxy, START, cells};
use results::{Measured, Results};
use world::{Programs, World};

/// Measures portolan beside kube-proxy and beside no proxy
#[derive(Parser)]
struct Arguments {
    /// What to measure
    #[arg(long, value_enum, default_value = "all")]
    scenario: Scenario,
    /// How many services there are; comma-separated [default: 1,1000,10000,50000; of a single
    /// scenario up to 10000]
    #[arg(long, value_delimiter = ',')]
    services: Vec<u32>,
    /// Who serves; kube-proxy's modes are measured with minSyncPeriod 0.1 s as well
    #[arg(
        long,
        value_delimiter = ',',
        value_enum,
        default_value = "direct,portolan-socket,portolan-packet,portolan-auto,nftables,iptables",
        default_value_if(
            "scenario",
            "connections",
            "direct,portolan-socket,portolan-packet,portolan-auto,portolan-both"
        ),
        default_value_if("scenario", "control-plane", "portolan-socket")
    )]
    proxies: Vec<Proxy>,
    /// How pods are joined to the node
    #[arg(long, value_enum, default_value = "bridge")]
    plumbing: Plumbing,
    /// Rounds that count
    #[arg(long, default_value_t = 40)]
    rounds: u32,
    /// Measure everything anew
    #[arg(long)]
    fresh: bool,
    /// A few services and rounds: whether everything works, not how fast it is
    #[arg(long)]
    quick: bool,
    /// The program kube-proxy
    #[arg(long)]
    kube_proxy: PathBuf,
    /// Handed over by `cargo bench`
    #[arg(long, hide = true)]
    bench: bool,
}

/// What is measured.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Scenario {
    /// Everything, for the report
    All,
    /// Connections and datagrams of pods, wherever portolan translates them
    Connections,
    /// Changes by an API server, memory, processor time and commands
    ControlPlane,
}

/// Number of services created at once. Between two such batches the benchmark can be interrupted.
const GROWTH: u32 = 500;
/// How many endpoints change per second while changes are timed.
const CHURN: [u32; 2] = [100, 1_000];
/// Continuous changes are measured with at most this many services. With more, the thread that
/// writes changes competes with the proxies for the processors.
const CHURN_SERVICES: u32 = 10_000;

/// How much is measured.
impl Arguments {
    fn pick<T>(&self, quick: T, whole: T) -> T {
        if self.quick { quick } else { whole }
    }

    fn rounds(&self) -> u32 {
        self.pick(3, self.rounds)
    }

    fn measures(&self, cell: &Cell) -> &'static [Measure] {
        match self.scenario {
            Scenario::All if cell.has_packets() => Measure::value_variants(),
            Scenario::Connections if cell.has_packets() => &Measure::CONNECTIONS,
            _ => &[],
        }
    }

    /// Returns whether changes are timed, and with them the agent's idle time and commands.
    fn has_changes(&self, cell: &Cell) -> bool {
        cell.has_changes() && self.scenario != Scenario::Connections
    }

    /// Returns whether continuous changes are measured.
    fn has_churn(&self, cell: &Cell) -> bool {
        let fitting = self.services.iter().filter(|n| **n <= CHURN_SERVICES);
        let is_most = fitting.max() == Some(&cell.services);
        is_most && self.scenario == Scenario::All && !cell.proxy.is_fast()
    }
}

fn main() -> Result<()> {
    let mut arguments = Arguments::parse();
    bpffs::prepare()?;
    interrupt::catch()?;
    let temporary = tempfile::TempDir::with_prefix("portolan-lab-")?;
    if arguments.quick {
        arguments.services = vec![20];
    } else if arguments.services.is_empty() {
        arguments.services = match arguments.scenario {
            Scenario::All => vec![1, 1_000, 10_000, 50_000],
            Scenario::Connections => vec![1, 1_000],
            Scenario::ControlPlane => vec![1_000, 10_000],
        };
    }
    // A single scenario is run to see what has changed.
    arguments.fresh |= arguments.scenario != Scenario::All;
    let programs = Programs {
        portolan: agent::find()?,
        kube_proxy: arguments.kube_proxy.clone(),
    };
    // cargo begins a benchmark in the package's folder.
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let folder = match arguments.scenario {
        _ if arguments.quick => temporary.path().to_owned(),
        Scenario::All => root.join("lab/report"),
        Scenario::Connections => root.join("target/lab/connections"),
        Scenario::ControlPlane => root.join("target/lab/control-plane"),
    };
    run(&arguments, &programs, &folder)
}

/// Measures what `folder` has no figures of yet, and writes the report there.
fn run(arguments: &Arguments, programs: &Programs, folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("make {}", folder.display()))?;
    let file = folder.join("results.json");
    if arguments.fresh && file.exists() {
        fs::remove_file(&file).with_context(|| format!("remove {}", file.display()))?;
    }
    let mut results = Results::resume(&file, describe(programs, arguments))?;
    let mut cells = cells(&arguments.services, &with_fast(&arguments.proxies));
    cells.retain(|cell| !arguments.measures(cell).is_empty() || arguments.has_changes(cell));
    let todo = cells.iter().filter(|cell| results.find(cell).is_none());
    let todo: Vec<_> = todo.collect();
    if !todo.is_empty() {
        let plain = World::new(arguments.plumbing)?;
        let served = World::new(arguments.plumbing)?;
        let address = world::NODE.to_string();
        let mut objects = Objects::start(served.node(), &address, &address)?;
        objects.server().apply(&world::objects())?;
        for (number, cell) in (1..).zip(&todo) {
            println!("{number:>3} of {}: {cell}", todo.len());
            while objects.count() < cell.services {
                ensure!(!INTERRUPTED.load(Ordering::Relaxed), "interrupted");
                objects.grow(cell.services.min(objects.count() + GROWTH), 2)?;
            }
            let worlds = [&plain, &served];
            let measured = measure(arguments, worlds, &mut objects, programs, cell)?;
            results.add(measured, &file)?;
        }
    }
    let (text, file) = (report::text(&results), folder.join("README.md"));
    fs::write(&file, &text).with_context(|| format!("write {}", file.display()))?;
    pictures::write(&results, folder)?;
    if arguments.scenario != Scenario::All {
        println!("{text}");
    }
    println!("{}", file.display());
    if arguments.quick {
        complete(&results, &cells, arguments)?;
    }
    Ok(())
}

/// Describes the machine, the versions of the measured programs, and the settings of the run.
fn describe(programs: &Programs, arguments: &Arguments) -> String {
    let version = |program: &Path| {
        let output = Command::new(program).arg("--version").output();
        let text = output.map(|output| output.stdout).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        text.lines().next().unwrap_or("unknown").trim().to_owned()
    };
    format!(
        "{}, kube-proxy ({}), {}, {};\npods joined by {}; {} rounds",
        machine::describe(),
        version(&programs.kube_proxy),
        version("nft".as_ref()),
        version("iptables".as_ref()),
        arguments.plumbing.name(),
        arguments.rounds()
    )
}

/// Returns the proxies, kube-proxy's modes twice: with the default and with a short minSyncPeriod.
fn with_fast(proxies: &[Proxy]) -> Vec<Proxy> {
    let twice = proxies.iter().flat_map(|proxy| match proxy {
        Proxy::Nftables => vec![Proxy::Nftables, Proxy::NftablesFast],
        Proxy::Iptables => vec![Proxy::Iptables, Proxy::IptablesFast],
        other => vec![*other],
    });
    twice.collect()
}

fn measure(
    arguments: &Arguments,
    [plain, served]: [&World; 2],
    objects: &mut Objects<'_>,
    programs: &Programs,
    cell: &Cell,
) -> Result<Measured> {
    plain.set_up(cell.setup)?;
    served.set_up(cell.setup)?;
    // The API server may still be working on its last writes.
    std::thread::sleep(Duration::from_secs(1));
    let since = Instant::now();
    let proxy = &served.start(cell, programs, &objects.server().kubeconfig())?;
    let mut measured = Measured::new(*cell);
    let said = |error: anyhow::Error| error.context(proxy.log()).context(cell.to_string());
    // If the last service does not answer in this time, the benchmark fails.
    let seconds = if cell.proxy.is_kube_proxy() { 600 } else { 60 };
    let most = Duration::from_secs(seconds);
    changes::start(served, objects, proxy, (since, most), &mut measured).map_err(said)?;
    let what = (arguments.measures(cell), arguments.rounds());
    packets::measure(plain, served, what, &mut measured).map_err(said)?;
    if !arguments.has_changes(cell) {
        return Ok(measured);
    }
    let count = arguments.pick(5, 200);
    changes::changes(served, objects, count, &mut measured).map_err(said)?;
    if let Some(agent) = proxy.agent() {
        let length = Duration::from_secs(arguments.pick(1, 20));
        waiting::idle(agent, length, &mut measured)?;
        let commands = waiting::commands(agent, objects, &programs.portolan, &mut measured);
        commands.map_err(said)?;
    }
    if let Some(pid) = proxy.pid().filter(|_| arguments.has_churn(cell)) {
        let length = Duration::from_secs(arguments.pick(2, 60));
        for wanted in CHURN {
            let what = (wanted, length);
            changes::churn(served, objects, pid, what, &mut measured).map_err(said)?;
        }
    }
    Ok(measured)
}

/// Fails if one of the cells was not measured completely.
fn complete(results: &Results, cells: &[Cell], arguments: &Arguments) -> Result<()> {
    for cell in cells {
        let name = cell.proxy.name();
        let measured = results.find(cell);
        let measured = measured.with_context(|| format!("{name} was not measured"))?;
        let measures = arguments.measures(cell).iter().copied();
        let endpoint = arguments.has_changes(cell).then_some(ENDPOINT);
        let start = (cell.proxy != Proxy::Direct).then_some(START);
        for heading in measures.map(Measure::heading).chain(endpoint).chain(start) {
            ensure!(measured.find(heading).is_some(), "{name}: no {heading}");
        }
    }
    println!("{} passed, 0 failed", cells.len());
    Ok(())
}
