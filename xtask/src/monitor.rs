// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cargo xtask monitor`: promtool checks the alerts of `deploy/chart`, and runs their tests. Not a
//! part of `cargo xtask test`, because it builds promtool where Debian's package prometheus is not
//! installed, which takes minutes.

use std::process::Command;

use anyhow::{Context, Result};

use crate::{
    cargo, command, fs, host,
    setup::go::{self, Module, Program},
};

const ALERTS: &str = "deploy/chart/alerts/alerts.yaml";
const TESTS: &str = "xtask/monitor/tests.yaml";

const PROMETHEUS: Module = Module {
    folder: "prometheus",
    versioned: "github.com/prometheus/prometheus",
};

/// Built without service discovery for the cloud providers.
const PROMTOOL: Program = Program::new("promtool", "github.com/prometheus/prometheus/cmd/promtool")
    .tagged("remove_all_sd");

pub(crate) fn run() -> Result<()> {
    let promtool = match host::find_program(PROMTOOL.name) {
        Some(found) => found,
        None => go::programs(&PROMETHEUS, &[PROMTOOL], "3 to 8 minutes")?.join(PROMTOOL.name),
    };
    let alerts = fs::read_to_string(cargo::root().join(ALERTS))?;
    let rules = rules(&alerts).with_context(|| format!("{ALERTS} has no spec"))?;
    let folder = tempfile::tempdir().context("make a folder")?;
    let at = |name: &str| folder.path().join(name);
    // The tests compare no other annotation than the summary, and name its file rules.yaml.
    fs::write(at("all.yaml"), &rules)?;
    fs::write(at("rules.yaml"), with_summaries_only(&rules))?;
    let tests = fs::read_to_string(cargo::root().join(TESTS))?;
    fs::write(at("tests.yaml"), tests)?;
    for (verb, file) in [("check", "all.yaml"), ("test", "tests.yaml")] {
        let mut command = Command::new(&promtool);
        command.args([verb, "rules"]).arg(at(file));
        command::check(&mut command, "judge the alerts by promtool")?;
    }
    Ok(())
}

/// Returns the rules as Prometheus reads them, without the Kubernetes object around them; None if
/// there is no such object.
fn rules(alerts: &str) -> Option<String> {
    let (_, rules) = alerts.split_once("\nspec:\n")?;
    let lines = rules
        .lines()
        .map(|line| line.strip_prefix("  ").unwrap_or(line));
    Some(lines.collect::<Vec<_>>().join("\n"))
}

fn with_summaries_only(rules: &str) -> String {
    let is_other = |line: &&str| {
        let line = line.trim_start();
        line.starts_with("description:") || line.starts_with("runbook_url:")
    };
    let lines = rules.lines().filter(|line| !is_other(line));
    lines.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_alert_fires_in_one_test_and_is_quiet_in_another() {
        let read = |file| fs::read_to_string(cargo::root().join(file)).expect("readable");
        let (alerts, tests) = (read(ALERTS), read(TESTS));
        let rules = rules(&alerts).expect("rules");
        let names = rules
            .lines()
            .filter_map(|line| line.trim().strip_prefix("- alert: "));
        let names: Vec<_> = names.collect();
        assert!(names.len() >= 20, "{names:?}");
        for name in names {
            assert!(
                tests.contains(&format!("alertname: {name}\n        exp_alerts:\n")),
                "{name}"
            );
            assert!(tests.contains(&format!("alertname: {name}}}")), "{name}");
        }
    }
}
