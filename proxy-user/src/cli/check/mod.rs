// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `portolan check`: says before a node is switched what is in the way there and what would differ. It attaches nothing, and leaves
//! nothing behind. The other files decide, from plain values that this one reads.

pub(super) mod beside;
pub(super) mod finding;
mod ipvs;
mod node;
mod services;
mod settings;

use std::{path::Path, process::ExitCode};

use anyhow::{Context, bail};
use serde::Serialize;
use tokio::signal::unix::{SignalKind, signal};

use self::finding::{Finding, Report};
use super::{
    Output,
    run::{Given, node_name},
};
use crate::{
    causes::chain,
    config::Config,
    datapath::{self, maps::pins},
    interfaces::{Interface, Interfaces},
    object::Warning,
    telemetry,
};

/// Arguments of `portolan check`, beside those that say where settings and objects come from, as of `portolan run`.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct CheckArgs {
    /// Also say what would differ from kube-proxy: settings, services, what kube-proxy has left on the node.
    #[arg(long)]
    pub migration: bool,
    /// Format of the output.
    #[arg(long, short, value_enum, default_value_t)]
    pub output: Output,
    #[command(flatten)]
    pub given: Given,
}

/// The exit status for arguments or objects that cannot be read, as clap's own.
const BAD_INPUT: u8 = 2;

/// Looks, prints what it has found, and returns the worst of it as the exit status.
pub(super) fn run(args: &CheckArgs) -> ExitCode {
    let printed = look(args).and_then(|report| {
        report.print(args.output)?;
        Ok(report.status())
    });
    printed.unwrap_or_else(|error| {
        telemetry::fail(&error);
        BAD_INPUT.into()
    })
}

fn look(args: &CheckArgs) -> anyhow::Result<Report> {
    let config = args.given.settings()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("start the runtime")?;
    runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate()).context("listen for SIGTERM")?;
        let mut interrupt = signal(SignalKind::interrupt()).context("listen for SIGINT")?;
        tokio::select! {
            report = look_around(args, &config) => report,
            // What it has made on the node goes with what it was doing.
            _ = terminate.recv() => bail!("ended by SIGTERM before it was done"),
            _ = interrupt.recv() => bail!("ended by SIGINT before it was done"),
        }
    })
}

async fn look_around(args: &CheckArgs, config: &Config) -> anyhow::Result<Report> {
    let mut report = Report::default();
    if args.migration {
        report.extend(settings::findings(config));
    }
    let interfaces = Interfaces::open(config.interface_patterns()).await?;
    let interfaces = interfaces.current();
    report.extend(node::host());
    report.extend(node::ports(config));
    let cgroup = match &config.cgroup_root {
        Some(root) => Some(root.clone()),
        None => datapath::cgroup_root().context("read /proc/self/mounts")?,
    };
    report.extend(node::cgroup(cgroup.as_deref()));
    let mut trial = node::Trial::begin(config);
    report.extend(trial.findings());
    report.extend(programs(config, interfaces, cgroup.as_deref()));
    if args.migration {
        match datapath::nft_chains() {
            Ok(chains) => report.extend(beside::rules(&chains)),
            Err(error) => report.extend([unread("nf_tables", &error)]),
        }
        report.extend(ipvs::findings(interfaces));
        let cluster = services::read(&args.given, config, &node(config)?).await?;
        report.extend(services::findings(&cluster, config, interfaces));
        report.extend(trial.fill(cluster, config, &node(config)?));
    }
    Ok(report)
}

/// What can be seen of this node without loading anything, for `portolan dump`.
pub(super) fn seen(config: &Config) -> anyhow::Result<impl Serialize> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("start the runtime")?;
    let interfaces = runtime.block_on(Interfaces::open(config.interface_patterns()))?;
    let interfaces = interfaces.current();
    // Listeners belong to it.
    let _entered = runtime.enter();
    let mut report = Report::default();
    report.extend(node::host());
    report.extend(node::ports(config));
    let cgroup = match &config.cgroup_root {
        Some(root) => Some(root.clone()),
        None => datapath::cgroup_root().context("read /proc/self/mounts")?,
    };
    report.extend(node::cgroup(cgroup.as_deref()));
    report.extend(programs(config, interfaces, cgroup.as_deref()));
    match datapath::nft_chains() {
        Ok(chains) => report.extend(beside::rules(&chains)),
        Err(error) => report.extend([unread("nf_tables", &error)]),
    }
    report.extend(ipvs::findings(interfaces));
    Ok(report)
}

/// Programs of others, and shadows.
fn programs(config: &Config, interfaces: &[Interface], cgroup: Option<&Path>) -> Vec<Finding> {
    let shadows = pins::shadows_beside(&config.pin_directory);
    let mut findings = beside::shadows(&shadows);
    match datapath::foresee(&config.pin_directory, &shadows, interfaces, cgroup) {
        Ok(found) => findings.extend(beside::programs(&found)),
        Err(error) => findings.push(unread("programs of others", &error)),
    }
    findings.extend(beside::qdiscs(interfaces));
    findings
}

fn node(config: &Config) -> anyhow::Result<String> {
    node_name(config.hostname_override.as_deref())
}

fn unread(what: &str, error: &std::io::Error) -> Finding {
    Finding::differs(
        what,
        format!("could not be read: {}", chain(error)),
        "run this command as root in the node's own network namespace",
    )
}

impl From<Warning> for Finding {
    fn from(warning: Warning) -> Self {
        Self::differs(warning.object, warning.reason, "")
    }
}
