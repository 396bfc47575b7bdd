// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cargo xtask conformance`: tests the running agent with the cases of conformance/FORMAT.md and
//! real packets. The test program `conformance` of proxy-user runs the cases; `cargo xtask test`
//! calls it too.

use std::{fs, path::PathBuf, process::Command};

use anyhow::{Context, Result, ensure};

use crate::{
    cargo::{self, Workspace},
    setup::{self, control_plane},
};

/// The name of the test program in proxy-user that runs the cases.
pub(crate) const TARGET: &str = "conformance";
pub(crate) const API: &str = "api";

#[derive(clap::Args, Default)]
pub(crate) struct Arguments {
    /// Folder of case files [default: the project's own, conformance/cases]
    dir: Option<PathBuf>,
    /// How pods are connected to the node
    #[arg(long, value_parser = ["bridge", "routed"])]
    plumbing: Option<String>,
    /// Whose sockets are translated at the socket
    #[arg(long, value_parser = ["all", "host"])]
    socket_balancing: Option<String>,
    /// How translated packets leave the node
    #[arg(long, value_parser = ["stack", "auto"])]
    forwarding: Option<String>,
    /// Whether XDP takes packets of known flows at the uplink
    #[arg(long, value_parser = ["off", "native", "generic"])]
    xdp: Option<String>,
    /// Where the agent reads its objects
    #[arg(long, value_parser = ["manifests", API])]
    source: Option<String>,
    /// Only this case; may be given more than once
    #[arg(long, value_name = "NAME")]
    case: Vec<String>,
    /// How many cases run at once
    #[arg(long, value_name = "N")]
    jobs: Option<usize>,
    /// Passed on to the runner
    #[arg(last = true)]
    rest: Vec<String>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let rest = runner_arguments(arguments)?;
    setup::run_as_root("the conformance runner")?;
    Workspace::read()?.require("test", TARGET)?;
    let runner = cargo::build_test(TARGET)?;
    // `cargo test` does not start this program: its count must be the last line of the output, and
    // cargo would print another one.
    let mut command = Command::new(&runner);
    if arguments.source.as_deref() == Some(API) {
        control_plane::offer(&mut command)?;
    }
    let status = command
        .args(rest)
        .current_dir(cargo::root())
        .status()
        .with_context(|| format!("start {}", runner.display()))?;
    if !status.success() {
        std::process::exit(status.code().unwrap_or(1));
    }
    Ok(())
}

/// Plumbing, balancing, forwarding, XDP and source of every stage of `cargo xtask test`. Balancing
/// `all` has one stage for each forwarding, because the forwarding changes only TCP between two
/// pods of the node there. XDP has one stage, because XDP takes only packets between outside and
/// other nodes, which are the same in every setting. Source `api` has one stage, because the agent
/// handles an object the same from any source, and an API server for every case takes a minute
/// more.
pub(crate) const STAGES: [[&str; 5]; 7] = [
    ["bridge", "all", "auto", "off", API],
    ["bridge", "host", "stack", "off", "manifests"],
    ["bridge", "host", "auto", "off", "manifests"],
    ["routed", "all", "stack", "off", "manifests"],
    ["routed", "host", "stack", "off", "manifests"],
    ["routed", "host", "auto", "off", "manifests"],
    ["bridge", "host", "auto", "native", "manifests"],
];

/// Returns arguments that select a stage's cases when all tests are run: stage 0 runs all cases;
/// the other stages each run an equal share.
pub(crate) fn share_arguments(stage: usize) -> Vec<String> {
    match stage {
        0 => Vec::new(),
        part => vec!["--share".to_owned(), format!("{part}/{}", STAGES.len() - 1)],
    }
}

/// Returns a stage's arguments for running only the failed cases. Each of `failures` begins with
/// the name of a case.
pub(crate) fn only_cases(stage: &[String], failures: &[String]) -> Vec<String> {
    let share = stage.iter().position(|argument| argument == "--share");
    let mut arguments = stage.to_vec();
    if let Some(share) = share {
        arguments.drain(share..share + 2);
    }
    for failure in failures {
        let case = failure.split(' ').next().unwrap_or_default();
        arguments.extend(["--case", case].map(str::to_owned));
    }
    arguments
}

/// Returns the test program's arguments for a row of `STAGES`.
pub(crate) fn stage_arguments(stage: [&str; 5]) -> Vec<String> {
    let [plumbing, balancing, forwarding, xdp, source] = stage;
    let arguments = format!(
        "--plumbing {plumbing} --socket-balancing {balancing} --forwarding {forwarding} --xdp {xdp} --source {source}"
    );
    arguments.split(' ').map(str::to_owned).collect()
}

/// Returns the test program's arguments. It starts in another folder, so paths become absolute.
fn runner_arguments(arguments: &Arguments) -> Result<Vec<String>> {
    let mut rest = Vec::new();
    if let Some(dir) = &arguments.dir {
        let dir = fs::canonicalize(dir)
            .with_context(|| format!("look for conformance cases in {}", dir.display()))?;
        let name = dir.to_str().context("the folder's name is not UTF-8")?;
        ensure!(
            dir.is_dir(),
            "{name} is not a folder; name one that holds case files"
        );
        rest.push(name.to_owned());
    }
    let options = [
        ("--plumbing", arguments.plumbing.clone()),
        ("--socket-balancing", arguments.socket_balancing.clone()),
        ("--forwarding", arguments.forwarding.clone()),
        ("--xdp", arguments.xdp.clone()),
        ("--source", arguments.source.clone()),
        ("--jobs", arguments.jobs.map(|jobs| jobs.to_string())),
    ];
    let cases = arguments
        .case
        .iter()
        .map(|case| ("--case", Some(case.clone())));
    for (name, value) in options.into_iter().chain(cases) {
        if let Some(value) = value {
            rest.extend([name.to_owned(), value]);
        }
    }
    rest.extend(arguments.rest.iter().cloned());
    Ok(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_that_failed_are_run_again_by_name_and_in_the_same_setting() {
        let stage = ["--plumbing", "routed", "--share", "2/6"].map(str::to_owned);
        let failures = ["web [routed, all, stack] step 1: no answer".to_owned()];
        assert_eq!(
            only_cases(&stage, &failures),
            ["--plumbing", "routed", "--case", "web"]
        );
    }

    #[test]
    fn the_conformance_runner_gets_exactly_the_given_arguments() {
        let nothing = runner_arguments(&Arguments::default());
        assert_eq!(nothing.expect("no folder"), [""; 0]);
        let asked = Arguments {
            dir: Some(".".into()),
            plumbing: Some("routed".to_owned()),
            case: vec!["a".to_owned(), "b".to_owned()],
            jobs: Some(3),
            rest: vec!["--binary=x".to_owned()],
            ..Arguments::default()
        };
        let got = runner_arguments(&asked).expect("the folder is there");
        assert!(PathBuf::from(&got[0]).is_absolute());
        let options = "--plumbing routed --jobs 3 --case a --case b --binary=x";
        assert_eq!(got[1..].join(" "), options);
    }

    #[test]
    fn a_missing_conformance_folder_is_named_in_the_error() {
        let asked = Arguments {
            dir: Some("no-such-folder".into()),
            ..Arguments::default()
        };
        let error = runner_arguments(&asked).expect_err("there is no such folder");
        assert!(format!("{error:#}").contains("no-such-folder"), "{error:#}");
    }
}
