// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `portolan shadow report`: compares how another proxy has treated connections, according to
//! nf_conntrack, with how portolan would, according to the maps of its shadow (an agent that only
//! counts).

mod compare;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context, Result, bail};
use config::Config;
use datapath::{
    DEFAULT_PIN_DIR, SHADOW_PIN_DIR, cleanup,
    maps::pins::{check_shadow, generations, is_held},
    read::Reader,
};
use linux::{Tracked, tracked};
use proxy_common::Counter;
use serde::Serialize;

use self::compare::{Comparison, Summary};
use super::{
    Output, examples, status_of,
    table::{Column, Tone, column, plain, print_table, toned},
    terminal::print_report,
};

/// The columns of the report's table; each row is a service port.
const COLUMNS: &[Column<compare::Row>] = &[
    column("SERVICE", 0, |row| plain(row.service.as_str())),
    column("RESULT", 0, |row| plain(row.result())),
    column("CONNECTIONS", 1, |row| plain(row.connections())),
    column("SAME", 1, |row| plain(row.same)),
    column("DIFFERENT", 0, |row| {
        let different = row.different + row.masqueraded_differently;
        toned(different, Tone::Bad.when(different > 0))
    }),
    column("FOR-EXAMPLE", 2, |row| plain(row.example.as_deref())),
];

/// What is asked of a shadow.
#[derive(clap::Subcommand, Clone, Debug)]
pub enum ShadowCommand {
    /// Compare what nf_conntrack knows of each service's connections with what portolan would do.
    #[command(after_help = examples::SHADOW_REPORT)]
    Report(ReportArgs),
}

/// Arguments of `portolan shadow report`.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct ReportArgs {
    /// Directory on a BPF file system in which the shadow pins its maps.
    #[arg(long, value_name = "DIR", default_value = SHADOW_PIN_DIR)]
    pub pin_dir: PathBuf,
    /// Format of the output.
    #[arg(long, short, value_enum, default_value_t)]
    pub output: Output,
}

/// The report, as JSON and YAML show it.
#[derive(Serialize)]
struct Report<'a> {
    services: &'a [compare::Row],
    summary: Summary,
    /// How many packets the shadow has counted since its start, by the outcome that they would have
    /// had.
    counted: BTreeMap<&'static str, u64>,
}

/// Compares, prints the report, and returns the exit status: 1 if something differs.
pub(super) fn run(command: &ShadowCommand) -> ExitCode {
    let ShadowCommand::Report(args) = command;
    status_of(report(args).map(u8::from))
}

fn report(args: &ReportArgs) -> Result<bool> {
    let reader = Reader::open(&args.pin_dir)?;
    let mut policies = reader.policies()?;
    let mut connections: Vec<Tracked> = Vec::new();
    tracked(|connection| connections.push(connection))
        .context("list the connections of nf_conntrack, which needs CAP_NET_ADMIN")?;
    let mut comparison = Comparison::new(policies.services());
    for connection in &connections {
        let client = connection.original.src.ip();
        let decision = policies.decide(connection.protocol, client, connection.original.dst)?;
        if let Some(decision) = decision {
            comparison.add(&decision, connection);
        }
    }
    let rows = comparison.rows();
    let summary = Summary::of(&rows);
    let counts = Counter::ALL.iter().zip(reader.counters()?);
    let counted: BTreeMap<_, _> = counts
        .filter(|(counter, count)| **counter != Counter::Untouched && *count > 0)
        .map(|(counter, count)| (counter.name(), count))
        .collect();
    let differs = summary.differs();
    let report = Report {
        services: &rows,
        summary,
        counted,
    };
    if args.output == Output::Table {
        print_table(COLUMNS, &rows)?;
    }
    print_report(args.output, &report, || {
        let counted = report.counted.iter();
        let counted = counted.map(|(name, count)| format!("{name} {count}"));
        let counted = match &*counted.collect::<Vec<_>>() {
            [] => "-".to_owned(),
            counted => counted.join(", "),
        };
        format!(
            "{}\npackets that the shadow has counted: {counted}",
            report.summary
        )
    })?;
    Ok(differs)
}

/// Fails if a shadow is to run where portolan already serves by the maps in `serving`, or if an
/// agent is to serve where a shadow runs: below Linux 6.6, each would take the other's filters for
/// its own. Removes from `left` what a killed shadow has left there.
pub(super) fn check_alone(config: &Config, serving: &Path, left: &Path) -> Result<()> {
    if config.shadow {
        // The default directory is checked too, in case only the shadow was given another one.
        for serving in [serving, Path::new(DEFAULT_PIN_DIR)] {
            let is_other = serving != config.pin_directory;
            if is_other && !generations(serving).unwrap_or_default().is_empty() {
                bail!(
                    "portolan serves on this node, by the maps in {}: a shadow would compare it with itself",
                    serving.display()
                );
            }
        }
    } else if config.pin_directory != left && left.exists() {
        if is_held(left) {
            bail!(
                "a shadow runs on this node, by the maps in {}: end it first",
                left.display()
            );
        }
        remove(left)?;
    }
    Ok(())
}

/// Removes the programs and pins of a shadow. Fails if the directory belongs to an agent that
/// serves.
pub(super) fn remove(pin_dir: &Path) -> Result<()> {
    check_shadow(pin_dir, true)?;
    cleanup::cleanup(pin_dir, false).context("remove the shadow's programs and maps")?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};

    use nix::fcntl::{Flock, FlockArg};

    use super::*;

    fn config(shadow: bool, pin_directory: &Path) -> Config {
        Config {
            shadow,
            pin_directory: pin_directory.to_owned(),
            ..Config::default()
        }
    }

    #[test]
    fn a_shadow_and_a_serving_agent_cannot_start_on_one_node() {
        let folder = tempfile::tempdir().expect("a folder");
        let [serving, left] = ["serving", "left"].map(|name| folder.path().join(name));
        let shadow = |pins: &Path| check_alone(&config(true, pins), &serving, &left);
        let serve = || check_alone(&config(false, &serving), &serving, &left);
        assert!(shadow(&left).is_ok() && serve().is_ok());

        fs::create_dir_all(serving.join("v3")).expect("a folder");
        let said = shadow(&left).expect_err("refused").to_string();
        assert!(said.starts_with("portolan serves on this node"), "{said}");
        assert!(shadow(&serving).is_ok(), "its own are looked at later");

        fs::create_dir(&left).expect("a folder");
        let held = File::open(&left).expect("it");
        let held = Flock::lock(held, FlockArg::LockExclusive).expect("held");
        let said = serve().expect_err("refused").to_string();
        assert!(said.starts_with("a shadow runs on this node"), "{said}");
        drop(held);
        let said = format!("{:#}", serve().expect_err("no BPF file system"));
        assert!(said.contains("remove the shadow's programs"), "{said}");
    }
}
