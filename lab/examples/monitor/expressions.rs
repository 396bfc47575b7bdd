// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The Prometheus expressions of the alerts and of the dashboard, each with the alert or panel that
//! it is from.

use std::{fs, path::Path};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// Grafana's variables in the dashboard's expressions, and the values put in their places.
const VARIABLES: [(&str, &str); 2] = [("$__rate_interval", "10s"), ("$instance", ".*")];

pub(crate) struct Expression {
    pub(crate) place: String,
    pub(crate) text: String,
}

/// A panel of the Grafana dashboard.
pub(crate) struct Panel {
    pub(crate) title: String,
    /// Whether the panel shows the latest value only.
    pub(crate) is_number: bool,
    pub(crate) unit: String,
    pub(crate) lines: Vec<Line>,
}

/// One expression of a panel, which draws one or more lines.
pub(crate) struct Line {
    pub(crate) text: String,
    /// The legend. A name in double braces stands for the value of that label.
    pub(crate) legend: String,
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

pub(crate) fn of_panels(panels: &[Panel]) -> impl Iterator<Item = Expression> {
    let each = panels.iter().flat_map(|panel| {
        let lines = panel.lines.iter();
        lines.map(|line| (&panel.title, line))
    });
    each.map(|(title, line)| Expression {
        place: format!("panel {title}"),
        text: line.text.clone(),
    })
}

/// Returns the dashboard's panels, without the headings between them. `clone` is the folder of this
/// repository.
pub(crate) fn panels(clone: &Path) -> Result<Vec<Panel>> {
    let file = clone.join("deploy/chart/dashboard/portolan.json");
    let json = fs::read(&file).with_context(|| format!("read {}", file.display()))?;
    let dashboard: Value = serde_json::from_slice(&json).context("read the dashboard")?;
    let mut all = Vec::new();
    for panel in dashboard["panels"].as_array().into_iter().flatten() {
        if panel["type"] == "row" {
            continue;
        }
        let targets = panel["targets"].as_array().into_iter().flatten();
        let lines = targets.map(|target| {
            let mut expression = text(&target["expr"])?;
            for (name, value) in VARIABLES {
                expression = expression.replace(name, value);
            }
            Ok(Line {
                text: expression,
                legend: text(&target["legendFormat"])?,
            })
        });
        let lines: Vec<_> = lines.collect::<Result<_>>()?;
        ensure!(!lines.is_empty(), "{} shows nothing", panel["title"]);
        all.push(Panel {
            title: text(&panel["title"])?,
            is_number: panel["type"] == "stat",
            unit: text(&panel["fieldConfig"]["defaults"]["unit"])?,
            lines,
        });
    }
    ensure!(!all.is_empty(), "the dashboard has no panel");
    Ok(all)
}

fn text(value: &Value) -> Result<String> {
    let text = value.as_str().map(str::to_owned);
    text.context("an expression, title, unit or legend is missing")
}
