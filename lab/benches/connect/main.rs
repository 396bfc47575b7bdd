// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Measures what a service costs: short TCP connections, and UDP and TCP exchanges from a pod to a
//! service, and to its pod without the service, on a node with the agent. They are compared with
//! the same traffic to the pod on an equal node without the agent. Needs root. `cargo xtask bench
//! connect` calls it.
//!
//! Each round runs every client on both nodes, one after the other in changing order, on one CPU.
//! Its result is the ratio of the times. The clients of both nodes connect equally often to equally
//! many ports, because closed connections slow later ones down. The table shows the median over the
//! rounds and its 95 % bootstrap interval. Rounds whose figure without the agent is far from the
//! median are run again and counted.

mod figures;
mod mode;
mod world;

use std::{
    path::{Path, PathBuf},
    thread,
};

use anyhow::{Result, ensure};
use clap::Parser;
use lab::{
    load::{
        client::{Client, Job},
        rounds::steady,
        setup::{Setup, config},
    },
    node::{
        agent::{Agent, Manifests, Options},
        binary, bpffs,
        netns::check_privilege,
        settings::Xdp,
        topology::Plumbing,
    },
};

use figures::{ARMS, DIRECTLY, Figures, PLAIN, Round};
use mode::Mode;
use world::{BEHIND_SERVICE, DIRECT, THROUGH_STACK, World, objects, service};

/// Measures what services cost connections and datagrams
#[derive(Parser)]
struct Arguments {
    /// How many services the node has; comma-separated
    #[arg(long, value_delimiter = ',', default_value = "1,1000,50000")]
    services: Vec<u32>,
    /// How pods are joined to the node
    #[arg(
        long,
        value_delimiter = ',',
        value_enum,
        default_value = "bridge,routed"
    )]
    plumbing: Vec<Plumbing>,
    /// What else the node's network stack does
    #[arg(
        long,
        value_delimiter = ',',
        value_enum,
        default_value = "bare,netfilter"
    )]
    node: Vec<Setup>,
    /// Where the agent translates what pods send
    #[arg(
        long,
        value_delimiter = ',',
        value_enum,
        default_value = "stack,socket,packet,auto,socket-auto"
    )]
    mode: Vec<Mode>,
    /// Rounds that count
    #[arg(long, default_value_t = 80, value_parser = clap::value_parser!(u32).range(10..))]
    rounds: u32,
    /// The agent's binary; default: the one beside this program
    #[arg(long)]
    binary: Option<PathBuf>,
    /// Handed over by `cargo bench`
    #[arg(long, hide = true)]
    bench: bool,
}

/// Connections, and exchanges by UDP and on an open connection, of each client in one round.
const CONNECTIONS: u32 = 300;
const EXCHANGES: u32 = 600;

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    check_privilege()?;
    bpffs::prepare()?;
    let binary = binary::find(arguments.binary.as_deref())?;
    println!(
        "rates with the agent / without it, median of {} rounds in pairs [95 % interval]; {CONNECTIONS} connections and {EXCHANGES} exchanges each a round",
        arguments.rounds
    );
    println!(
        "{:>7} {:>9} {:>8} {:>6}  {:<19} {:<24} {:<19} {:<19} {:<19} {:<19} {:>6} {:>7}",
        "pods",
        "node",
        "services",
        "mode",
        "TCP by service",
        "connect(), µs more",
        "UDP by service",
        "open TCP connection",
        "TCP not ours",
        "UDP not ours",
        "direct",
        "re-run"
    );
    let mut missed = Vec::new();
    for plumbing in &arguments.plumbing {
        for setup in &arguments.node {
            let a = World::new(*plumbing, *setup)?;
            let b = World::new(*plumbing, *setup)?;
            for count in &arguments.services {
                let first = Some(count) == arguments.services.first();
                let fits = |mode: &&Mode| mode.fits(*plumbing) && (mode.has_agent() || first);
                for mode in arguments.mode.iter().filter(fits) {
                    let case = Case {
                        binary: &binary,
                        plumbing: *plumbing,
                        setup: *setup,
                        services: *count,
                        mode: *mode,
                    };
                    let figures = measure(&case, [&a, &b], arguments.rounds)?;
                    figures.print(&case);
                    missed.extend(figures.missed(&case));
                }
            }
        }
    }
    println!();
    if missed.is_empty() {
        println!("every target is reached");
    }
    for line in missed {
        println!("missed: {line}");
    }
    Ok(())
}

struct Case<'a> {
    binary: &'a Path,
    plumbing: Plumbing,
    setup: Setup,
    services: u32,
    mode: Mode,
}

/// Measures half of the rounds with the agent on one node, half with the agent on the other, and
/// joins them in pairs. The memory layout of a node changes results by 0.5 %; pairs with exchanged
/// nodes cancel this.
fn measure(case: &Case<'_>, nodes: [&World; 2], rounds: u32) -> Result<Figures> {
    let [a, b] = nodes;
    let (first, again) = half(case, b, a, rounds.div_ceil(2))?;
    let (second, again_too) = half(case, a, b, rounds.div_ceil(2))?;
    let pairs: Vec<_> = first.into_iter().zip(second).collect();
    ensure!(pairs.len() >= 5, "the machine is too busy to measure on");
    Ok(Figures::of(&pairs, again + again_too))
}

/// Measures the rounds with the agent on the node `served`. Returns them, and the number of rounds
/// that were run again.
fn half(case: &Case<'_>, bare: &World, served: &World, rounds: u32) -> Result<(Vec<Round>, u32)> {
    let _agent = start_agent(case, served)?;
    let frontend = match case.mode {
        Mode::None => BEHIND_SERVICE,
        Mode::Stack => THROUGH_STACK,
        Mode::Socket | Mode::Packet | Mode::Auto | Mode::SocketAuto => service(case.services),
    };
    thread::scope(|scope| {
        let without = Client::start(scope, bare.client(), Some(bare.cgroup()));
        let with = Client::start(scope, served.client(), Some(served.cgroup()));
        let arms = [
            (&without, DIRECT),
            (&with, DIRECT),
            (&without, BEHIND_SERVICE),
            (&with, frontend),
        ];
        let round = |number: u32| -> Result<Round> {
            let mut took: Round = Default::default();
            for turn in 0..ARMS {
                let arm = (turn + number as usize) % ARMS;
                let (client, to) = arms[arm];
                took[arm] = [
                    client.run(Job::connections(to, CONNECTIONS))?,
                    client.run(Job::Datagrams(to, EXCHANGES))?,
                    client.run(Job::Exchanges(to, EXCHANGES))?,
                ];
            }
            Ok(took)
        };
        for number in 0..ARMS as u32 {
            round(number)?;
        }
        steady(
            rounds,
            round,
            &[
                &|round| round[PLAIN][0].each,
                &|round| round[PLAIN][1].each,
                &|round| round[DIRECTLY][0].each,
                &|round| round[DIRECTLY][1].each,
            ],
        )
    })
}

fn start_agent<'a>(case: &Case<'_>, world: &'a World) -> Result<Option<Agent<'a>>> {
    let Some((balancing, forwarding)) = case.mode.settings() else {
        return Ok(None);
    };
    let options = Options {
        binary: case.binary,
        node_name: "node-a",
        cluster_cidrs: &[],
        config: &config(forwarding, Xdp::Off),
        socket_balancing: balancing,
        kubeconfig: None,
        cgroup_root: world.cgroup().path(),
    };
    let objects = objects(case.services)?;
    let mut agent = Agent::start(world.node(), &options, &Manifests::Text(&objects))?;
    agent
        .wait_for(1)
        .map_err(|error| error.context(agent.log_tail(5).join("\n")))?;
    Ok(Some(agent))
}
