// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Finds the metrics that a text names, with labels and values, and compares them with
//! docs/metrics.md. Used by `tests`.

use std::collections::{BTreeMap, BTreeSet};

use proxy_common::Counter;

/// The beginnings of the names of all metrics that portolan has.
const FAMILIES: [&str; 5] = ["portolan_", "kubeproxy_", "process_", "rest_client_", "go_"];
/// Labels that Prometheus adds to every metric.
const ADDED: [&str; 4] = ["instance", "job", "le", "__name__"];

/// Returns the labels of each metric, by the metric's name, as docs/metrics.md lists them.
pub(super) fn documented(page: &str) -> BTreeMap<String, BTreeSet<String>> {
    let mut all = BTreeMap::new();
    for line in page.lines() {
        let Some((name, rest)) = line.strip_prefix("- `").and_then(|r| r.split_once('`')) else {
            continue;
        };
        let kind = rest.strip_prefix(" (").and_then(|r| r.split_once(')'));
        let Some((kind, help)) = kind else {
            continue;
        };
        let (kind, labels) = kind.split_once(" by ").unwrap_or((kind, ""));
        let listed = labels.split(", ").filter(|label| !label.is_empty());
        let in_words = help
            .split_once("Its label `")
            .and_then(|(_, r)| r.split_once('`'));
        let labels: BTreeSet<_> = listed
            .chain(in_words.map(|(label, _)| label))
            .map(str::to_owned)
            .collect();
        let endings: &[&str] = match kind {
            "histogram" => &["", "_bucket", "_sum", "_count"],
            _ => &[""],
        };
        for ending in endings {
            all.insert(format!("{name}{ending}"), labels.clone());
        }
    }
    all
}

/// Returns one complaint for each metric, label or outcome in a text that does not exist.
pub(super) fn wrong(text: &str, known: &BTreeMap<String, BTreeSet<String>>) -> Vec<String> {
    let mut found = Vec::new();
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut rest = text;
    while let Some(at) = rest.find(is_name) {
        let word = &rest[at..];
        let end = word.find(|c| !is_name(c)).unwrap_or(word.len());
        let (name, after) = word.split_at(end);
        rest = after;
        // A prefix of names, as in `portolan_map_(entries|capacity)`, is a search pattern and not a
        // name.
        if !FAMILIES.iter().any(|family| name.starts_with(family)) || name.ends_with('_') {
            continue;
        }
        let Some(labels) = known.get(name) else {
            found.push(format!("there is no metric {name}"));
            continue;
        };
        let Some(inside) = after.strip_prefix('{').and_then(|r| r.split_once('}')) else {
            continue;
        };
        for matcher in inside.0.split(", ").filter(|matcher| !matcher.is_empty()) {
            let label = matcher.split(['=', '!']).next().unwrap_or_default();
            let value = matcher.split('"').nth(1).unwrap_or_default();
            if !labels.contains(label) && !ADDED.contains(&label) {
                found.push(format!("{name} has no label {label}"));
            }
            if label == "outcome" {
                let unknown = value.split('|').filter(|pattern| !is_outcome(pattern));
                found.extend(unknown.map(|pattern| format!("there is no outcome {pattern}")));
            }
        }
    }
    found
}

fn is_outcome(pattern: &str) -> bool {
    let names = || Counter::ALL.iter().map(|counter| counter.name());
    match pattern.strip_suffix(".*") {
        Some(beginning) => names().any(|name| name.starts_with(beginning)),
        None => names().any(|name| name == pattern),
    }
}

#[test]
fn unknown_metrics_labels_and_outcomes_in_a_text_are_named() {
    let known = documented(
        "- `portolan_a` (gauge by map): A.\n- `portolan_b_seconds` (histogram): B.\n\
         - `portolan_packets_total` (counter): C. Its label `outcome` is one of:",
    );
    for (text, expected) in [
        (
            "sum(portolan_a{map!~\"x\", instance=\"y\"}) / portolan_b_seconds_sum",
            "",
        ),
        (
            "portolan_packets_total{outcome=~\"dropped_.*|masqueraded\"}",
            "",
        ),
        ("grep -E 'portolan_(a|b)'", ""),
        ("portolan_c > 0", "there is no metric portolan_c"),
        ("portolan_a_bucket", "there is no metric portolan_a_bucket"),
        (
            "portolan_a{outcome=\"x\"}",
            "portolan_a has no label outcome, there is no outcome x",
        ),
        (
            "portolan_packets_total{outcome=~\"masked|dropped_.*\"}",
            "there is no outcome masked",
        ),
    ] {
        assert_eq!(wrong(text, &known).join(", "), expected, "{text}");
    }
}
