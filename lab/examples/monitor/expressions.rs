// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The expressions of the alerts and of the dashboard, each with the place where it stands.

use std::{fs, path::Path};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// Grafana's variables, and what stands for them here.
const VARIABLES: [(&str, &str); 2] = [("$__rate_interval", "10s"), ("$instance", ".*")];

pub(crate) struct Expression {
    pub(crate) place: String,
    pub(crate) text: String,
}

pub(crate) fn of_rules(rules: &Value) -> Result<Vec<Expression>> {
    let all = super::alerts(rules).map(|alert| {
        Ok(Expression {
            place: format!("alert {}", alert["alert"]),
            text: text(&alert["expr"])?,
        })
    });
    all.collect()
}

pub(crate) fn of_dashboard(clone: &Path) -> Result<Vec<Expression>> {
    let file = clone.join("deploy/chart/dashboard/portolan.json");
    let json = fs::read(&file).with_context(|| format!("read {}", file.display()))?;
    let dashboard: Value = serde_json::from_slice(&json).context("read the dashboard")?;
    let mut all = Vec::new();
    for panel in dashboard["panels"].as_array().into_iter().flatten() {
        for target in panel["targets"].as_array().into_iter().flatten() {
            let mut expression = text(&target["expr"])?;
            for (name, value) in VARIABLES {
                expression = expression.replace(name, value);
            }
            all.push(Expression {
                place: format!("panel {}", panel["title"]),
                text: expression,
            });
        }
    }
    ensure!(!all.is_empty(), "the dashboard has no expression");
    Ok(all)
}

fn text(value: &Value) -> Result<String> {
    value
        .as_str()
        .map(str::to_owned)
        .context("there is no expression")
}
