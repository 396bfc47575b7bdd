// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cargo xtask monitor`: promtool checks the alerts of `deploy/chart` and the expressions of its
//! dashboard, and runs the alerts' tests. Not a part of `cargo xtask test`, because it builds
//! promtool where Debian's package prometheus is not installed, which takes minutes.

use std::process::Command;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::{cargo, command, fs, host, setup::go};

const ALERTS: &str = "deploy/chart/alerts/alerts.yaml";
const DASHBOARD: &str = "deploy/chart/dashboard/portolan.json";
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
    let dashboard = fs::read_to_string(cargo::root().join(DASHBOARD))?;
    let recorded = recorded(&dashboard).with_context(|| format!("{DASHBOARD} is no JSON"))?;
    fs::write(at("panels.yaml"), recorded)?;
    for (verb, file) in [
        ("check", "all.yaml"),
        ("check", "panels.yaml"),
        ("test", "tests.yaml"),
    ] {
        let mut command = Command::new(&promtool);
        command.args([verb, "rules"]).arg(at(file));
        command::check(&mut command, "judge alerts and dashboard by promtool")?;
    }
    Ok(())
}

/// Returns the rules without the Kubernetes object around them; None if there is none.
fn rules(alerts: &str) -> Option<String> {
    let (_, rules) = alerts.split_once("\nspec:\n")?;
    Some(rules.replace("\n  ", "\n").trim_start().to_owned())
}

/// Returns the expressions of a dashboard's panels as recording rules, which promtool can check.
fn recorded(dashboard: &str) -> serde_json::Result<String> {
    let dashboard: Value = serde_json::from_str(dashboard)?;
    let panels = dashboard["panels"].as_array().into_iter().flatten();
    let targets = panels.flat_map(|panel| panel["targets"].as_array().into_iter().flatten());
    let mut rules = "groups: [{name: dashboard, rules: [".to_owned();
    for (number, target) in targets.enumerate() {
        // A text of JSON is one of YAML.
        let expr = target["expr"].to_string();
        let expr = expr.replace("$__rate_interval", "5m");
        rules += &format!("{{record: panel:{number}, expr: {expr}}},\n");
    }
    Ok(rules + "]}]\n")
}

fn with_summaries_only(rules: &str) -> String {
    let others = ["description:", "runbook:"];
    let is_other = |line: &&str| {
        let mut others = others.iter();
        others.any(|other| line.trim_start().starts_with(other))
    };
    let lines = rules.lines().filter(|line| !is_other(line));
    lines.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn read(file: &str) -> String {
        fs::read_to_string(cargo::root().join(file)).expect("readable")
    }

    #[test]
    fn every_metric_that_an_alert_or_a_panel_asks_for_exists() {
        let page = read("docs/metrics.md");
        let recorded = recorded(&read(DASHBOARD)).expect("JSON");
        let asked = recorded + &rules(&read(ALERTS)).expect("rules");
        let words = asked.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let ours = ["portolan_", "kubeproxy_", "rest_client_"];
        let names = words.filter(|word| ours.iter().any(|beginning| word.starts_with(beginning)));
        let names: BTreeSet<_> = names.map(|name| name.trim_end_matches("_bucket")).collect();
        assert!(names.len() > 30, "{names:?}");
        for name in names {
            assert!(page.contains(&format!("- `{name}` (")), "{name}");
        }
    }

    #[test]
    fn every_alert_fires_in_one_test_and_is_quiet_in_another() {
        let (alerts, tests) = (read(ALERTS), read(TESTS));
        let rules = rules(&alerts).expect("rules");
        let lines = rules.lines().map(str::trim);
        let names = lines.filter_map(|line| line.strip_prefix("- alert: "));
        let names: Vec<_> = names.collect();
        assert!(names.len() >= 20, "{names:?}");
        for name in names {
            let fires = format!("alertname: {name}\n        exp_alerts:\n");
            for wanted in [fires, format!("alertname: {name}}}")] {
                assert!(tests.contains(&wanted), "{name}");
            }
        }
    }
}
