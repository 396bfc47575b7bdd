// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The soak test: ordinary traffic on one node, with clients of every kind, rolling updates, and
//! firewall rules of other programs. It runs with portolan in its default settings, without a
//! proxy, and with kube-proxy in mode nftables. With portolan no exchange may fail, no unusual
//! outcome may be counted, and the last minute must be as fast as the first. Needs root.
//! Called by `cargo xtask soak`.

mod clients;
mod cluster;
mod counters;
mod disturb;
mod pods;
mod proxy;
mod record;
mod report;
mod run;
mod servers;
mod world;

use std::{fs, path::PathBuf, process::ExitCode};

use anyhow::{Context, Result};
use clap::Parser;
use lab::{
    interrupt,
    node::{agent, bpffs, topology::Plumbing},
    random::of_today,
};

use crate::proxy::{Programs, Proxy};

/// Lives an ordinary life on a node
#[derive(Parser)]
struct Arguments {
    /// How long each proxy serves, for each plumbing
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..))]
    minutes: u64,
    /// What is drawn: ports, endpoints, sizes, the order of updates [default: the day's]
    #[arg(long, default_value_t = of_today(), hide_default_value = true)]
    seed: u64,
    /// Who serves; comma-separated
    #[arg(long, value_delimiter = ',', default_value = "none,portolan,nftables")]
    proxies: Vec<Proxy>,
    /// How pods are joined to the node; comma-separated
    #[arg(long, value_delimiter = ',', default_value = "bridge,routed")]
    plumbing: Vec<Plumbing>,
    /// Disturb portolan's agent and what it has made, one disturbance after the other; only those
    /// that have the value in their names
    #[arg(long, num_args = 0..=1, default_missing_value = "", require_equals = true)]
    disturb: Option<String>,
    /// Only kinds of clients that have this in their names
    #[arg(long, default_value = "")]
    only: String,
    /// A file for the tables
    #[arg(long)]
    report: Option<PathBuf>,
    /// The program kube-proxy, for nftables
    #[arg(long)]
    kube_proxy: Option<PathBuf>,
    /// Handed over by `cargo bench`
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> Result<ExitCode> {
    let arguments = Arguments::parse();
    interrupt::catch()?;
    bpffs::prepare()?;
    let portolan = agent::find()?;
    let next_layout = portolan.with_file_name("portolan-next-layout");
    let programs = Programs {
        next_layout: next_layout.exists().then_some(next_layout),
        portolan,
        kube_proxy: arguments.kube_proxy.clone(),
    };
    let mut proxies = arguments.proxies.clone();
    if arguments.disturb.is_some() {
        proxies = vec![Proxy::Portolan];
        if programs.next_layout.is_none() {
            println!("NO UPGRADE: portolan-next-layout is not there; cargo xtask soak builds it");
        }
    }
    let mut plumbings = Vec::new();
    for plumbing in &arguments.plumbing {
        let mut runs = Vec::new();
        for proxy in &proxies {
            println!("{}, {}", plumbing.name(), proxy.name());
            runs.push(run::run(&arguments, *plumbing, *proxy, &programs)?);
        }
        plumbings.push((*plumbing, runs));
    }
    let faults = report::faults(&plumbings);
    let text = report::text(&arguments, &plumbings, &faults);
    println!("{text}");
    if let Some(file) = arguments.report {
        fs::write(&file, &text).with_context(|| format!("write {}", file.display()))?;
    }
    // `cargo xtask test` reads the count.
    for fault in &faults {
        println!("FAIL {fault}");
    }
    let failed = faults.len();
    println!("{} passed, {failed} failed", usize::from(failed == 0));
    Ok(ExitCode::from(u8::from(failed > 0)))
}
