// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Compares the pages of docs/runbooks with alerts, outcomes, warnings and metrics. The commands in
//! the pages are tested in proxy-user/tests/node/pages.rs.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use proxy_common::Counter;
use serde_json::Value;

use super::{
    mentions::{documented, wrong},
    of_outcome,
};

const INDEX: &str = "README.md";
const FOLDER: &str = "docs/runbooks";
const SECTIONS: [&str; 3] = ["## Who notices", "## Look", "## Mend"];

fn clone() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &str) -> String {
    fs::read_to_string(clone().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Returns the texts of the runbook pages by their paths, without the index.
fn pages() -> BTreeMap<String, String> {
    let entries = fs::read_dir(clone().join(FOLDER)).expect("the pages");
    let names = entries.map(|entry| entry.expect("a page").file_name());
    let paths = names.map(|name| format!("{FOLDER}/{}", name.to_string_lossy()));
    let pages = paths.filter(|path| !path.ends_with(INDEX));
    pages.map(|path| (path.clone(), read(&path))).collect()
}

fn alerts() -> Vec<Value> {
    let object: Value =
        serde_saphyr::from_str(&read("deploy/chart/alerts/alerts.yaml")).expect("YAML");
    let groups = object["spec"]["groups"].as_array().expect("groups");
    let rules = groups.iter().map(|group| group["rules"].as_array());
    let rules = rules.flat_map(|rules| rules.expect("rules").clone());
    rules.collect()
}

#[test]
fn every_alert_and_every_outcome_of_a_problem_has_a_runbook_that_names_it() {
    let pages = pages();
    let mut named = Vec::new();
    for alert in alerts() {
        let name = alert["alert"].as_str().expect("a name").to_owned();
        let page = alert["annotations"]["runbook_url"].as_str();
        named.push((name, page.expect("a page").to_owned()));
    }
    assert!(named.len() > 15, "{named:?}");
    for counter in Counter::ALL {
        named.extend(of_outcome(*counter).map(|page| (counter.name().to_owned(), page.into())));
    }
    for (name, page) in &named {
        let text = pages.get(page).unwrap_or_else(|| panic!("{name}: {page}"));
        assert!(text.contains(&format!("`{name}`")), "{page}: {name}");
    }
}

#[test]
fn exactly_the_outcomes_that_clients_suffer_from_have_a_runbook() {
    for counter in Counter::ALL {
        let suffers = ["dropped", "rejected", "refused", "full"];
        let suffers = suffers.iter().any(|word| counter.name().contains(word));
        assert_eq!(suffers, of_outcome(*counter).is_some(), "{counter:?}");
    }
}

#[test]
fn every_runbook_of_a_warning_exists_and_mentions_the_warning() {
    let source = include_str!("../../../control/src/warnings.rs");
    let (_, of_warnings) = source.split_once("fn page(").expect("it is here");
    let pages = pages();
    let named: BTreeSet<_> = of_warnings
        .split('"')
        .filter(|text| text.starts_with(FOLDER))
        .collect();
    assert!(named.len() > 10, "{named:?}");
    for page in named {
        let text = pages.get(page).unwrap_or_else(|| panic!("no {page}"));
        let head = text.lines().nth(2).expect("what it is about");
        assert!(
            head.to_lowercase().contains("warning about"),
            "{page}: {head}"
        );
    }
}

#[test]
fn every_page_is_linked_once_has_its_sections_and_is_short() {
    let index = read(&format!("{FOLDER}/{INDEX}"));
    for (path, text) in pages() {
        let file = path.rsplit('/').next().expect("a name");
        assert_eq!(index.matches(&format!("]({file})")).count(), 1, "{path}");
        let sections: Vec<_> = text
            .lines()
            .filter(|line| line.starts_with("## "))
            .collect();
        assert_eq!(sections, SECTIONS, "{path}");
        assert!(text.lines().count() < 50, "{path}");
    }
    assert!(read("README.md").contains("(docs/runbooks/README.md)"));
}

#[test]
fn the_runbook_index_agrees_with_each_runbook() {
    let index = read(&format!("{FOLDER}/{INDEX}"));
    let quoted = |text: &str| -> BTreeSet<String> {
        let words = text.split('`').skip(1).step_by(2);
        let names: Vec<_> = Counter::ALL.iter().map(|counter| counter.name()).collect();
        words
            .filter(|word| word.starts_with("Portolan") || names.contains(word))
            .map(str::to_owned)
            .collect()
    };
    for (path, text) in pages() {
        let file = path.rsplit('/').next().expect("a name");
        let row = index
            .lines()
            .find(|line| line.contains(&format!("]({file})")));
        let head = text.lines().nth(2).expect("what it is about");
        assert_eq!(quoted(row.expect("a row")), quoted(head), "{path}");
    }
}

#[test]
fn every_metric_of_alerts_dashboard_and_pages_is_in_docs_metrics_md() {
    let known = documented(&read("docs/metrics.md"));
    assert!(known.len() > 50, "{known:?}");
    let mut texts = pages();
    let mut expressions = Vec::new();
    for alert in alerts() {
        expressions.push(alert["expr"].clone());
    }
    let dashboard: Value =
        serde_json::from_str(&read("deploy/chart/dashboard/portolan.json")).expect("JSON");
    for panel in dashboard["panels"].as_array().expect("panels") {
        let targets = panel["targets"].as_array().into_iter().flatten();
        expressions.extend(targets.map(|target| target["expr"].clone()));
    }
    assert!(expressions.len() > 40);
    for (number, expression) in expressions.iter().enumerate() {
        let text = expression.as_str().expect("an expression").to_owned();
        texts.insert(format!("expression {number}: {text}"), text);
    }
    for (place, text) in texts {
        assert_eq!(wrong(&text, &known), [""; 0], "{place}");
    }
}
