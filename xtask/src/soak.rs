// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cargo xtask soak`: runs ordinary traffic on a node with portolan, without a proxy and with
//! kube-proxy, by the benchmark `soak` of the package `lab`. `--write` writes the tables of
//! docs/reliability.md. `cargo xtask test soak` runs two minutes of it.

use std::{fs, path::Path, process::Command};

use anyhow::{Context, Result};

use crate::{
    cargo::{self, TESTED_PACKAGES, Workspace, root},
    host, lab,
    setup::{self, Needs, control_plane},
};

const TARGET: &str = "soak";
const PAGE: &str = "docs/reliability.md";
/// The comments in docs/reliability.md between which `--write` replaces the text.
const MARKS: [&str; 2] = [
    "<!-- Written by cargo xtask soak --write -->\n",
    "<!-- End of what cargo xtask soak --write has written -->\n",
];

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// How long each proxy serves, for each plumbing
    #[arg(long, default_value_t = 10)]
    minutes: u64,
    /// What is drawn; without it, the day's
    #[arg(long)]
    seed: Option<u64>,
    /// Writes the tables into docs/reliability.md, also if something failed
    #[arg(long)]
    write: bool,
    /// Passed on: --proxies none,portolan,nftables --plumbing bridge,routed --only KIND
    #[arg(last = true)]
    rest: Vec<String>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    host::require_root("the soak", "")?;
    setup::run(Needs::All)?;
    host::ensure_bpffs()?;
    let report = Workspace::read()?.target_directory().join("soak.md");
    // If the benchmark writes no report, that of an earlier run must not be used.
    _ = fs::remove_file(&report);
    let mut command = prepare("bench")?;
    control_plane::offer(&mut command)?;
    command
        .arg("--kube-proxy")
        .arg(lab::kube_proxy()?)
        .arg("--report")
        .arg(&report)
        .args(["--minutes", &arguments.minutes.to_string()]);
    if let Some(seed) = arguments.seed {
        command.args(["--seed", &seed.to_string()]);
    }
    command.args(&arguments.rest);
    let result = cargo::check(&mut command, "live an ordinary life");
    if arguments.write {
        write(&report)?;
    }
    result
}

/// Builds the agent; returns the command that runs the benchmark by `cargo bench` or `cargo test`.
pub(crate) fn prepare(subcommand: &str) -> Result<Command> {
    Workspace::read()?.require("bench", TARGET)?;
    cargo::build_with_agent(["--bench", TARGET], subcommand == "bench")?;
    let mut command = cargo::cargo(subcommand);
    command
        .arg("--locked")
        .args(TESTED_PACKAGES)
        .args(["--bench", TARGET, "--"]);
    Ok(command)
}

/// Replaces the tables in docs/reliability.md.
fn write(report: &Path) -> Result<()> {
    let tables = fs::read_to_string(report).context("the soak has made no tables")?;
    let page = root().join(PAGE);
    let text = fs::read_to_string(&page).with_context(|| format!("read {PAGE}"))?;
    let text = replaced(&text, tables.trim())
        .with_context(|| format!("{PAGE} lacks the lines {}", MARKS.join("and ")))?;
    fs::write(&page, text).with_context(|| format!("write {PAGE}"))
}

/// Returns the page with new tables between the marks; None if the page has no marks.
fn replaced(page: &str, tables: &str) -> Option<String> {
    let [begin, end] = MARKS;
    let (before, rest) = page.split_once(begin)?;
    let (_, after) = rest.split_once(end)?;
    Some(format!("{before}{begin}\n{tables}\n\n{end}{after}"))
}

#[cfg(test)]
mod tests {
    use super::{MARKS, replaced};

    #[test]
    fn only_what_lies_between_the_marks_is_replaced() {
        let [begin, end] = MARKS;
        let page = format!("a\n{begin}old\n{end}b\n");
        let wanted = format!("a\n{begin}\nnew\n\n{end}b\n");
        assert_eq!(replaced(&page, "new"), Some(wanted));
        assert_eq!(replaced(&format!("a\n{begin}old\n"), "new"), None);
    }
}
