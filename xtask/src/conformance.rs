// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cargo xtask conformance`: tests the running agent with the cases of conformance/FORMAT.md and
//! real packets. The test program `conformance` of proxy-user runs the cases; `cargo xtask test`
//! calls it too.

use std::process::Command;

use anyhow::{Context, Result};

use crate::{
    cargo::{self, Workspace},
    lab::Passed,
    setup::{self, control_plane},
};

/// The name of the test program in proxy-user that runs the cases.
pub(crate) const TARGET: &str = "conformance";
pub(crate) const API: &str = "api";

pub(crate) fn run(passed: &Passed) -> Result<()> {
    setup::run_as_root("the conformance runner")?;
    Workspace::read()?.require("test", TARGET)?;
    let runner = cargo::build_test(TARGET)?;
    // `cargo test` does not start this program: its count must be the last line of the output, and
    // cargo would print another one.
    let mut command = Command::new(&runner);
    if passed.words().any(|word| word.ends_with(API)) {
        control_plane::offer(&mut command)?;
    }
    let status = command.args(passed.words()).status();
    let status = status.with_context(|| format!("start {}", runner.display()))?;
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
}
