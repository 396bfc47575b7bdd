// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Measures what many agents cost an API server, and themselves: portolan's source of objects
//! beside kube-proxy's informers, in turns with one kube-apiserver. Needs root. `cargo xtask bench
//! fleet` calls it; docs/dev/fleet.md says what is measured, and how.
//!
//! The same program, started by itself with `--client`, is a process with some of portolan's
//! agents.

mod client;

use std::{env, path::PathBuf, time::Duration};

use anyhow::{Context, Result, ensure};
use clap::Parser;
use lab::{
    fleet::{
        clients::{Kind, Programs},
        figures::Rounds,
        objects::sizes,
        phases::{Effort, Measurement},
        report::{Report, machine},
        world::World,
    },
    node::netns::check_privilege,
};

/// Measures many agents with one API server
#[derive(Parser)]
struct Arguments {
    /// How many agents follow the API server
    #[arg(long, default_value_t = 50)]
    agents: usize,
    /// Over how many processes they are spread
    #[arg(long, default_value_t = 2)]
    processes: usize,
    /// How many services there are
    #[arg(long, default_value_t = 10_000)]
    services: u32,
    /// How many endpoints these have in total; default: ten times as many
    #[arg(long)]
    endpoints: Option<u32>,
    /// How many changes of a slice of 100 endpoints are measured
    #[arg(long, default_value_t = 40)]
    changes: u32,
    /// Milliseconds from one change to the next
    #[arg(long, default_value_t = 200)]
    pause: u64,
    /// How often each kind of agent is measured
    #[arg(long, default_value_t = 2)]
    rounds: usize,
    /// A few agents, services and changes: whether everything works, not how fast it is
    #[arg(long)]
    quick: bool,
    /// The folder for the figures and tables; default: they are only printed
    #[arg(long)]
    report: Option<PathBuf>,
    /// The program of kube-proxy's informers; without it only portolan is measured
    #[arg(long)]
    informers: Option<PathBuf>,
    /// This is a process with agents
    #[arg(long, hide = true, requires = "kubeconfig")]
    client: bool,
    /// How that process reaches the API server
    #[arg(long, hide = true)]
    kubeconfig: Option<PathBuf>,
    /// The number of the node of that process's first agent
    #[arg(long, hide = true, default_value_t = 0)]
    first: u32,
    /// Handed over by `cargo bench`
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> Result<()> {
    let mut arguments = Arguments::parse();
    if let Some(kubeconfig) = arguments.kubeconfig.filter(|_| arguments.client) {
        return client::run(&kubeconfig, arguments.first, arguments.agents);
    }
    check_privilege()?;
    let mut idle = Duration::from_secs(10);
    if arguments.quick {
        (arguments.agents, arguments.services, arguments.rounds) = (5, 20, 1);
        arguments.changes = 5;
        idle = Duration::from_secs(1);
    }
    ensure!(
        (1..=arguments.agents).contains(&arguments.processes),
        "--agents {} cannot be spread over --processes {}",
        arguments.agents,
        arguments.processes
    );
    ensure!(
        arguments.rounds > 0 && arguments.changes > 0,
        "--rounds and --changes must be at least 1"
    );
    let programs = Programs {
        portolan: env::current_exe().context("find this program")?,
        informers: arguments.informers,
    };
    if programs.informers.is_none() {
        println!(
            "KUBE-PROXY'S INFORMERS ARE NOT MEASURED: --informers does not name their program"
        );
    }
    let endpoints = arguments.endpoints.unwrap_or(10 * arguments.services);
    let effort = Effort {
        agents: arguments.agents,
        processes: arguments.processes,
        changes: arguments.changes,
        pause: Duration::from_millis(arguments.pause),
        idle,
    };
    let kinds = programs.kinds();
    let report = Report {
        agents: effort.agents,
        processes: effort.processes,
        services: arguments.services,
        endpoints,
        changes: effort.changes,
        debug: cfg!(debug_assertions),
        machine: machine(),
        rounds: measure(
            &programs,
            &effort,
            &sizes(arguments.services, endpoints)?,
            arguments.rounds,
        )?,
    };
    println!("\n{}", report.markdown());
    if let Some(folder) = &arguments.report {
        report.write(folder)?;
    }
    let faults = report.rounds.faults(&kinds);
    for (kind, fault) in &faults {
        println!("FAIL {}: {fault}", kind.name());
    }
    let failed = |kind: &&Kind| faults.iter().any(|(of, _)| of == *kind);
    let failed = kinds.iter().filter(failed).count();
    println!("{} passed, {failed} failed", kinds.len() - failed);
    ensure!(failed == 0, "figures are missing or impossible");
    Ok(())
}

/// Measures every kind of agent in each round, in turns: each is the first in every other round.
fn measure(programs: &Programs, effort: &Effort, sizes: &[u32], rounds: usize) -> Result<Rounds> {
    let logs = tempfile::TempDir::with_prefix("portolan-fleet-")?;
    let world = World::new()?;
    let folder = logs.path().to_owned();
    let mut measurement = Measurement::new(&world, sizes, effort.clone(), folder)?;
    let mut measured = Rounds::default();
    let mut kinds = programs.kinds();
    for round in 1..=rounds {
        println!("round {round} of {rounds}");
        measured.alone.push(measurement.alone()?);
        for kind in &kinds {
            let figures = measurement.fleet(programs, *kind)?;
            measured.fleets.push((*kind, figures));
        }
        kinds.reverse();
    }
    Ok(measured)
}
