// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `portolan check`: before a node is switched to portolan, says what would keep it from serving
//! and what would differ; later, whether everything works. It attaches nothing, changes nothing and
//! leaves nothing behind. This file reads the node; the other files decide from plain values.

mod foreign;
mod installed;
mod ipvs;
mod node;
mod services;
mod settings;

use std::{path::PathBuf, process::ExitCode};

use agent::{half_seen, unserved_interfaces, unserved_node_ports};
use anyhow::{Context, bail};
use config::Config;
use control::object::Warning;
use linux::interfaces::{Interface, Interfaces};
use serde::Serialize;
use tokio::signal::unix::{SignalKind, signal};

use super::{
    agent::{Agent, AgentArgs},
    finding::{Finding, Level, Report},
    frame::{Output, exit_status, runtime},
    run::{Given, KUBECONFIG, node_name},
    terminal::print_report,
};

/// Arguments of `portolan check`. Settings and objects come from where `portolan run` has them.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct CheckArgs {
    /// Also say what would differ from kube-proxy: settings, services, what kube-proxy has left on
    /// the node.
    #[arg(long)]
    pub migration: bool,
    /// Format of the output.
    #[arg(long, short, value_enum, default_value_t)]
    pub output: Output,
    #[command(flatten)]
    pub given: Given,
}

/// Prints the findings, and returns the exit status that belongs to the worst one.
pub(super) fn run(args: &CheckArgs) -> ExitCode {
    let printed = read_until_signal(args).and_then(|report| {
        print_report(args.output, &report, || report.text())?;
        Ok(report.code())
    });
    exit_status(printed)
}

fn read_until_signal(args: &CheckArgs) -> anyhow::Result<Report> {
    runtime()?.block_on(async {
        let mut terminate = signal(SignalKind::terminate()).context("listen for SIGTERM")?;
        let mut interrupt = signal(SignalKind::interrupt()).context("listen for SIGINT")?;
        tokio::select! {
            report = read(args) => report,
            // What the check has made on the node is removed when its future is dropped.
            _ = terminate.recv() => bail!("ended by SIGTERM before it was done"),
            _ = interrupt.recv() => bail!("ended by SIGINT before it was done"),
        }
    })
}

async fn read(args: &CheckArgs) -> anyhow::Result<Report> {
    let mut report = Report::default();
    // kube-proxy's file names the kubeconfig of its own pod, so --kubeconfig is used as well.
    let given = args.given.settings_keeping(&[KUBECONFIG])?;
    let agent = Agent::find(&AgentArgs::at(&given.pin_directory));
    // The settings of a running agent are used, unless the arguments give others.
    let (source, config) = match &agent.given {
        Some(source) if args.given.is_empty() => {
            let note = |pid| Finding::of("settings-of-agent", &[&pid]);
            report.extend(agent.pid.map(note));
            (source, agent.config.clone())
        }
        _ => (&args.given, given),
    };
    let config = &config;
    report.extend(settings::conntrack(config));
    if args.migration {
        report.extend(settings::findings(config));
    }
    let interfaces = Interfaces::open(config.interface_patterns()).await?;
    let interfaces = interfaces.current();
    let mut trial = node::Trial::begin(config);
    report.extend(of_node(config, &agent, interfaces, &trial.hooks())?);
    let unserved = unserved_node_ports(config, &[], interfaces);
    report.extend(unserved.into_iter().map(Finding::from));
    let half_seen = half_seen(config, interfaces, linux::conntrack_misses_bridges());
    report.extend(half_seen.map(Finding::from));
    report.extend(trial.findings());
    if args.migration {
        report.extend(of_other_proxy(interfaces));
        let node = node_name(config.hostname_override.as_deref())?;
        let cluster = services::read(source, config, &node).await?;
        report.extend(services::findings(&cluster, config, interfaces));
        report.extend(trial.fill(cluster, config, &node));
    }
    Ok(report)
}

/// Returns the directory of the cgroup2 hierarchy for the socket hooks, if there is one.
pub(crate) fn cgroup(config: &Config) -> anyhow::Result<Option<PathBuf>> {
    match &config.cgroup_root {
        Some(root) => Ok(Some(root.clone())),
        None => datapath::cgroup_root().context("read /proc/self/mounts"),
    }
}

/// Returns those findings that need no loading of programs, for the archive of `dump`.
pub(super) fn seen(config: &Config) -> anyhow::Result<impl Serialize> {
    let runtime = runtime()?;
    let interfaces = runtime.block_on(Interfaces::open(config.interface_patterns()))?;
    let interfaces = interfaces.current();
    // Listening sockets need an entered tokio runtime.
    let _entered = runtime.enter();
    let agent = Agent::find(&AgentArgs::at(&config.pin_directory));
    let mut report = Report::default();
    // Which hooks the kernel supports is not tested here; `status` lists the attached ones.
    report.extend(of_node(config, &agent, interfaces, &[])?);
    report.extend(of_other_proxy(interfaces));
    Ok(report)
}

/// Returns findings about the node. `hooks`: the socket hooks that this kernel supports.
fn of_node(
    config: &Config,
    agent: &Agent,
    interfaces: &[Interface],
    hooks: &[&'static str],
) -> anyhow::Result<Vec<Finding>> {
    let (pins, cgroup) = (&config.pin_directory, cgroup(config)?);
    let cgroup = cgroup.as_deref();
    let mut found = node::host();
    found.extend(node::ports(config));
    found.extend(node::cgroup(cgroup, config.cgroup_root.is_some()));
    found.extend(installed::findings(pins, agent, interfaces, hooks));
    match datapath::foresee(pins, interfaces, cgroup) {
        Ok(foreseen) => found.extend(foreign::programs(&foreseen)),
        Err(error) => found.push(Finding::unread("programs of others", &error)),
    }
    found.extend(foreign::qdiscs(interfaces));
    found.extend(unserved_interfaces(interfaces).map(Finding::from));
    Ok(found)
}

/// Returns findings about firewall rules that portolan has not made, and about IPVS.
fn of_other_proxy(interfaces: &[Interface]) -> Vec<Finding> {
    let mut found = match linux::nft_chains() {
        Ok(chains) => foreign::rules(&chains),
        Err(error) => vec![Finding::unread("nf_tables", &error)],
    };
    found.extend(ipvs::findings(interfaces));
    found
}

impl From<Warning> for Finding {
    fn from(warning: Warning) -> Self {
        Self::new(Level::Differs, warning.object, warning.reason)
    }
}
