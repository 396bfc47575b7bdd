// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Measures the agent with a real API server on the same processors: the time from the agent's
//! start until the last service answers, the time from a write to the API until packets follow,
//! memory, the processor time while nothing changes, and the time of commands. For each change it
//! also reports when the API server had accepted the write and when a second watch, without an
//! agent, saw it: the rest is the agent's time. `cargo xtask bench control-plane` calls it.

mod commands;
mod witness;
mod world;

use std::{
    path::{Path, PathBuf},
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use clap::Parser;
use lab::{
    load::{
        objects::Objects,
        process::{processor_time, resident},
        records,
        statistics::quantiles,
    },
    node::{
        agent::{Agent, Manifests, Options},
        binary, bpffs,
        netns::check_privilege,
        settings::SocketBalancing,
    },
};

use witness::Witness;
use world::World;

/// How long nothing changes while processor time is measured.
const IDLE: Duration = Duration::from_secs(20);
/// Endpoints of each service while the memory is measured.
const MANY: u32 = 10;

#[derive(Parser)]
struct Arguments {
    /// Numbers of services, growing
    #[arg(long, value_delimiter = ',', default_value = "1000,10000")]
    services: Vec<u32>,
    /// Changes whose way to the packets is measured, at each number
    #[arg(long, default_value_t = 300)]
    changes: u32,
    /// The agent's binary; default: the one beside this program
    #[arg(long)]
    binary: Option<PathBuf>,
    /// Given by cargo
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    check_privilege()?;
    bpffs::prepare()?;
    let binary = binary::find(arguments.binary.as_deref())?;
    let world = World::build()?;
    let mut objects = Objects::start(world.node(), "10.40.0.1")?;
    println!(
        "{:>8} {:>9}  {:>10} {:>10}  {:>9} {:>9} {:>9}  {:>8} {:>8}",
        "services",
        "endpoints",
        "start, s",
        "ready, s",
        "p50, ms",
        "p99, ms",
        "max, ms",
        "RSS, MiB",
        "idle, %"
    );
    for services in &arguments.services {
        objects.grow(*services, 2)?;
        measure(&world, &mut objects, &binary, 2, arguments.changes)?;
    }
    objects.set_endpoints(MANY)?;
    measure(&world, &mut objects, &binary, MANY, 0)
}

fn measure(
    world: &World,
    objects: &mut Objects<'_>,
    binary: &Path,
    endpoints: u32,
    changes: u32,
) -> Result<()> {
    let kubeconfig = objects.kubeconfig();
    let options = Options {
        binary,
        node_name: "node-a",
        cluster_cidrs: &["10.40.0.0/16".parse().context("a range")?],
        config: "",
        socket_balancing: SocketBalancing::All,
        kubeconfig: Some(&kubeconfig),
        cgroup_root: world.cgroup(),
    };
    // Gives the API server time to finish the work for its last writes.
    sleep(Duration::from_secs(3));
    let started = Instant::now();
    let agent = Agent::start(world.node(), &options, &Manifests::Text(""))?;
    let last = objects.count() - 1;
    world.wait_for_answer(records::address_of(last))?;
    // If there are many endpoints, most do not exist, so the time of the first answer is random.
    let answered = if endpoints == MANY {
        f64::NAN
    } else {
        started.elapsed().as_secs_f64()
    };
    let [taken, seen, followed] =
        change(world, objects, changes)?.map(|times| quantiles(times, [0.5, 0.99, 1.0]));
    sleep(Duration::from_secs(2));
    let before = processor_time(agent.pid())?;
    sleep(IDLE);
    let idle = (processor_time(agent.pid())? - before) / IDLE.as_secs_f64() * 100.0;
    println!(
        "{:>8} {endpoints:>9}  {:>10.2} {:>10.2}  {:>9.2} {:>9.2} {:>9.2}  {:>8.1} {idle:>8.2}",
        objects.count(),
        answered,
        ready(&agent),
        followed[0],
        followed[1],
        followed[2],
        resident(agent.pid())?,
    );
    if changes > 0 {
        println!(
            "{:>18}  until the server has taken a write: p50 {:.2}, p99 {:.2} ms; until a bare watch sees it: {:.2}, {:.2} ms",
            "", taken[0], taken[1], seen[0], seen[1],
        );
        commands::measure(&agent, objects, binary)?;
    }
    Ok(())
}

/// Makes `changes` changes. Returns three lists of milliseconds from the write of each change:
/// until the API server had accepted it, until a second watch saw it, and until packets followed.
fn change(world: &World, objects: &mut Objects<'_>, changes: u32) -> Result<[Vec<f64>; 3]> {
    let witness = Witness::start(objects)?;
    let (mut taken, mut seen, mut followed) = (Vec::new(), Vec::new(), Vec::new());
    for number in 0..changes {
        let service = records::spread(number, objects.count());
        let target = 1 - objects.target_of(service);
        let written = Instant::now();
        objects.point(service, target)?;
        taken.push(milliseconds(written.elapsed()));
        world.wait_for(records::address_of(service), target)?;
        followed.push(milliseconds(written.elapsed()));
        seen.push(milliseconds(witness.came(service, written)? - written));
    }
    Ok([taken, seen, followed])
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Returns the seconds until the agent's first sync had ended, from its log; NaN if the log does
/// not say it.
fn ready(agent: &Agent<'_>) -> f64 {
    let lines = agent.log_tail(1000);
    let line = lines.iter().find(|line| line.contains("ready"));
    let elapsed = line.and_then(|line| line.split("elapsed=").nth(1));
    let text = elapsed
        .unwrap_or_default()
        .split_whitespace()
        .next()
        .unwrap_or_default();
    let (number, unit) = match text.strip_suffix("ms") {
        Some(number) => (number, 1e-3),
        None => (text.trim_end_matches('s'), 1.0),
    };
    number.parse().map_or(f64::NAN, |number: f64| number * unit)
}
