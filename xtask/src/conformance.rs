// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cargo xtask conformance`: tests the running agent with the cases of conformance/FORMAT.md and
//! real packets. The test program `conformance` of proxy-user runs the cases; `cargo xtask test`
//! calls it too.

use std::{fs, path::PathBuf, process::Command};

use anyhow::{Context, Result, ensure};

use crate::{
    cargo::{self, Workspace},
    host,
    setup::{self, Needs, control_plane},
};

/// The name of the test program in proxy-user that runs the cases.
pub(crate) const TARGET: &str = "conformance";
/// How the test program can connect pods to the node.
const PLUMBINGS: [&str; 2] = ["bridge", "routed"];

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Folder of case files [default: the project's own, conformance/cases]
    dir: Option<PathBuf>,
    /// How pods are connected to the node
    #[arg(long, value_parser = PLUMBINGS)]
    plumbing: Option<String>,
    /// Whose sockets are translated at the socket
    #[arg(long, value_parser = BALANCINGS)]
    socket_balancing: Option<String>,
    /// How translated packets leave the node
    #[arg(long, value_parser = FORWARDINGS)]
    forwarding: Option<String>,
    /// Whether XDP takes packets of known flows at the uplink
    #[arg(long, value_parser = XDPS)]
    xdp: Option<String>,
    /// Where the agent reads its objects
    #[arg(long, value_parser = SOURCES)]
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
    host::require_root("the conformance runner", "")?;
    setup::run(Needs::All)?;
    host::ensure_bpffs()?;
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

/// The values of the option `--socket-balancing`.
const BALANCINGS: [&str; 2] = ["all", "host"];

/// The values of the option `--forwarding`.
const FORWARDINGS: [&str; 2] = ["stack", "auto"];

/// The values of the option `--xdp`.
const XDPS: [&str; 3] = ["off", "native", "generic"];

/// The values of the option `--source`.
const SOURCES: [&str; 2] = ["manifests", API];
pub(crate) const API: &str = "api";

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

/// Returns a stage's arguments, changed so that only the cases run that `failures` begin with.
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
    let names = [
        "--plumbing",
        "--socket-balancing",
        "--forwarding",
        "--xdp",
        "--source",
    ];
    let pairs = names.into_iter().zip(stage);
    pairs
        .flat_map(|(name, value)| [name.to_owned(), value.to_owned()])
        .collect()
}

/// Returns the test program's arguments. It starts in another folder, so paths become absolute.
fn runner_arguments(arguments: &Arguments) -> Result<Vec<String>> {
    let mut rest = Vec::new();
    if let Some(dir) = &arguments.dir {
        let dir = fs::canonicalize(dir)
            .with_context(|| format!("look for conformance cases in {}", dir.display()))?;
        ensure!(
            dir.is_dir(),
            "{} is not a folder; name one that holds case files",
            dir.display()
        );
        rest.push(
            dir.into_os_string()
                .into_string()
                .ok()
                .context("the folder's name is not UTF-8")?,
        );
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

    fn arguments() -> Arguments {
        Arguments {
            dir: None,
            plumbing: None,
            socket_balancing: None,
            forwarding: None,
            xdp: None,
            source: None,
            case: Vec::new(),
            jobs: None,
            rest: Vec::new(),
        }
    }

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
    fn the_runner_gets_what_was_asked_for_and_nothing_else() {
        assert!(
            runner_arguments(&arguments())
                .expect("no folder")
                .is_empty()
        );
        let asked = Arguments {
            dir: Some(".".into()),
            plumbing: Some("routed".to_owned()),
            case: vec!["a".to_owned(), "b".to_owned()],
            jobs: Some(3),
            rest: vec!["--binary=x".to_owned()],
            ..arguments()
        };
        let got = runner_arguments(&asked).expect("the folder is there");
        assert!(PathBuf::from(&got[0]).is_absolute());
        let options = [
            "--plumbing",
            "routed",
            "--jobs",
            "3",
            "--case",
            "a",
            "--case",
            "b",
            "--binary=x",
        ];
        assert_eq!(got[1..], options);
    }

    #[test]
    fn a_folder_that_is_not_there_is_named() {
        let asked = Arguments {
            dir: Some("no-such-folder".into()),
            ..arguments()
        };
        let error = runner_arguments(&asked).expect_err("there is no such folder");
        assert!(format!("{error:#}").contains("no-such-folder"), "{error:#}");
    }
}
