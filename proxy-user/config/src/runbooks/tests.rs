// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Compares the sections of docs/runbooks.md with alerts, outcomes, warnings and metrics. The
//! commands in the page are tested in proxy-user/tests/node/pages.rs.

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

const PAGE: &str = "docs/runbooks.md";
/// How the line before a section's heading begins and ends, around the section's name.
const ANCHOR: (&str, &str) = ("<a id=\"", "\"></a>");
const PARTS: [&str; 3] = ["**Who notices**:", "**Look**:", "**Mend**:"];

fn clone() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &str) -> String {
    fs::read_to_string(clone().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Returns the page's beginning, with the table of all sections.
fn index() -> String {
    let page = read(PAGE);
    let (index, _) = page.split_once(ANCHOR.0).expect("sections");
    index.to_owned()
}

/// Returns the sections' texts from their headings on, by what names them: the page's path with
/// the section's anchor.
fn sections() -> BTreeMap<String, String> {
    let page = read(PAGE);
    let mut sections = BTreeMap::new();
    for section in page.split(ANCHOR.0).skip(1) {
        let (name, text) = section.split_once(ANCHOR.1).expect("an anchor");
        let text = text.strip_prefix('\n').expect("a heading in the next line");
        assert!(text.starts_with("## "), "{name}");
        let before = sections.insert(format!("{PAGE}#{name}"), text.to_owned());
        assert_eq!(before, None, "two sections have the anchor {name}");
    }
    sections
}

/// Returns the line of a section that says which alert, outcome or warning it is about.
fn head(section: &str) -> &str {
    section.lines().nth(2).expect("what it is about")
}

/// Returns the alerts and outcomes, each with what names its section.
fn alerts_and_outcomes() -> Vec<(String, String)> {
    let mut named = Vec::new();
    for alert in alerts() {
        let name = alert["alert"].as_str().expect("a name").to_owned();
        let section = alert["annotations"]["runbook_url"].as_str();
        named.push((name, section.expect("a section").to_owned()));
    }
    for counter in Counter::ALL {
        let section = of_outcome(*counter).map(str::to_owned);
        named.extend(section.map(|section| (counter.name().to_owned(), section)));
    }
    named
}

/// Returns what names the sections about warnings.
fn of_warnings() -> BTreeSet<String> {
    let source = include_str!("../../../control/src/warnings.rs");
    let (_, of_warnings) = source.split_once("fn page(").expect("it is here");
    let quoted = of_warnings.split('"');
    let named = quoted.filter(|text| text.starts_with("docs/"));
    named.map(str::to_owned).collect()
}

/// Collects the texts of all files below a folder by their paths, except what is built or hidden.
fn collect(folder: &Path, texts: &mut BTreeMap<PathBuf, String>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let entry = entry.expect("an entry");
        let (name, path) = (entry.file_name(), entry.path());
        if name == "target" || name.to_string_lossy().starts_with('.') {
            continue;
        }
        if path.is_dir() {
            collect(&path, texts);
        } else if let Ok(text) = fs::read_to_string(&path) {
            texts.insert(path, text);
        }
    }
}

/// Returns the names behind each `before` in a text.
fn names_behind<'a>(text: &'a str, before: &'a str) -> impl Iterator<Item = &'a str> {
    let is_of_a_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let rests = text.split(before).skip(1);
    rests.map(move |rest| {
        let end = rest.find(|c| !is_of_a_name(c)).unwrap_or(rest.len());
        &rest[..end]
    })
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
    let sections = sections();
    let named = alerts_and_outcomes();
    assert!(alerts().len() > 15, "{named:?}");
    for (name, section) in &named {
        let text = sections.get(section);
        let text = text.unwrap_or_else(|| panic!("{name}: {section}"));
        assert!(text.contains(&format!("`{name}`")), "{section}: {name}");
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
    let sections = sections();
    let named = of_warnings();
    assert!(named.len() > 10, "{named:?}");
    for section in named {
        let text = sections.get(&section);
        let head = head(text.unwrap_or_else(|| panic!("no {section}")));
        assert!(
            head.to_lowercase().contains("warning about"),
            "{section}: {head}"
        );
    }
}

#[test]
fn every_section_is_about_an_alert_an_outcome_or_a_warning() {
    let of_others = alerts_and_outcomes()
        .into_iter()
        .map(|(_, section)| section);
    let named: BTreeSet<_> = of_others.chain(of_warnings()).collect();
    let sections: BTreeSet<_> = sections().into_keys().collect();
    assert_eq!(sections, named);
}

#[test]
fn every_section_is_linked_once_has_its_parts_and_is_short() {
    let index = index();
    let sections = sections();
    for (path, text) in &sections {
        let (_, name) = path.split_once('#').expect("an anchor");
        assert_eq!(index.matches(&format!("](#{name})")).count(), 1, "{path}");
        let heading = text
            .lines()
            .next()
            .and_then(|line| line.strip_prefix("## "));
        let link = format!("[{}](#{name})", heading.expect("a heading"));
        assert!(index.contains(&link), "{path}: {link}");
        let lines = text.lines();
        let starts = lines.filter(|line| line.starts_with("**"));
        let parts: Vec<_> = starts
            .map(|line| PARTS.into_iter().find(|part| line.starts_with(part)))
            .collect();
        assert_eq!(parts, PARTS.map(Some), "{path}");
        let headings = text.lines().filter(|line| line.starts_with('#'));
        assert_eq!(headings.count(), 1, "{path}: a heading without its anchor");
        assert!(text.lines().count() < 50, "{path}");
    }
    assert!(read("README.md").contains("(docs/runbooks.md)"));
}

#[test]
fn every_section_that_a_file_of_the_clone_names_exists() {
    let sections = sections();
    let exists = |name: &str| sections.contains_key(&format!("{PAGE}#{name}"));
    let mut texts = BTreeMap::new();
    collect(&clone(), &mut texts);
    let mut links = 0;
    for (file, text) in &texts {
        let names = names_behind(text, "runbooks.md#");
        for name in names.filter(|name| !name.is_empty()) {
            assert!(exists(name), "{}: {name}", file.display());
            links += 1;
        }
    }
    assert!(links > 60, "{links}");
    for section in sections.values() {
        for name in names_behind(section, "](#") {
            assert!(exists(name) || name == "by-symptom", "{PAGE}: {name}");
        }
    }
    assert!(index().contains("\n## By symptom\n"));
}

#[test]
fn the_table_of_runbooks_agrees_with_each_runbook() {
    let index = index();
    let quoted = |text: &str| -> BTreeSet<String> {
        let words = text.split('`').skip(1).step_by(2);
        let names: Vec<_> = Counter::ALL.iter().map(|counter| counter.name()).collect();
        words
            .filter(|word| word.starts_with("Portolan") || names.contains(word))
            .map(str::to_owned)
            .collect()
    };
    for (path, text) in sections() {
        let (_, name) = path.split_once('#').expect("an anchor");
        let link = format!("](#{name})");
        let row = index.lines().find(|line| line.contains(&link));
        assert_eq!(quoted(row.expect("a row")), quoted(head(&text)), "{path}");
    }
}

#[test]
fn every_metric_of_alerts_dashboard_and_runbooks_is_in_docs_metrics_md() {
    let known = documented(&read("docs/metrics.md"));
    assert!(known.len() > 50, "{known:?}");
    let mut texts = sections();
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
