// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cargo xtask monitor`: promtool checks the alerts of `deploy/chart`, and runs their tests. Not a
//! part of `cargo xtask test`, because it builds promtool where Debian's package prometheus is not
//! installed, which takes minutes.

use std::process::Command;

use anyhow::{Context, Result};

use crate::{cargo, command, fs, host, setup::go};

const ALERTS: &str = "deploy/chart/alerts/alerts.yaml";
const TESTS: &str = "xtask/monitor/tests.yaml";

pub(crate) fn run() -> Result<()> {
    let promtool = match host::find_program("promtool") {
        Some(found) => found,
        None => go::program("prometheus", "promtool")?,
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
    Some(rules.replace("\n  ", "\n").trim_start().to_owned())
}

fn with_summaries_only(rules: &str) -> String {
    let others = ["description:", "runbook_url:"];
    let is_other = |line: &&str| {
        others
            .iter()
            .any(|other| line.trim_start().starts_with(other))
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
        let lines = rules.lines().map(str::trim);
        let names: Vec<_> = lines
            .filter_map(|line| line.strip_prefix("- alert: "))
            .collect();
        assert!(names.len() >= 20, "{names:?}");
        for name in names {
            let fires = format!("alertname: {name}\n        exp_alerts:\n");
            for wanted in [fires, format!("alertname: {name}}}")] {
                assert!(tests.contains(&wanted), "{name}");
            }
        }
    }
}
