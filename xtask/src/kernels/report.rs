// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Writes the results of each kernel into docs/support.md, and the figures of the programs into
//! docs/dev/kernels.md. Both are made from docs/dev/kernels.json, where a run replaces only the
//! results of its own kernel. `lint` compares the programs' sizes there with a budget.

use std::collections::BTreeSet;

use anyhow::{Context, Result};
use serde_json::{Map, Value, json};

use super::{apt::compare, boot::Run};
use crate::{cargo, fs};

/// How many instructions the verifier may process for a program; its own limit is a million.
const BUDGET: u64 = 400_000;

/// The names of all stages of `stages`.
const STAGES: [&str; 6] = ["packet", "cases", "maps", "serve", "devices", "conformance"];

const SUPPORT: &str = "docs/support.md";
/// The lines of `SUPPORT` around the table of results.
const MARKS: [&str; 2] = [
    "<!-- cargo xtask kernels writes this table -->\n\n",
    "\n\n<!-- until here -->",
];

const DATA: &str = "docs/dev/kernels.json";

/// The content of `DATA`. Key: the series of kernels (e.g. 6.12), value: its results.
type Kernels = Map<String, Value>;

fn read() -> Result<Kernels> {
    let kernels = serde_json::from_str(&fs::read_to_string(cargo::root().join(DATA))?);
    kernels.with_context(|| format!("parse {DATA}"))
}

/// Stores the results of a kernel and writes the page. Earlier results of the same kernel version
/// stay for stages that were not run now. `made` has the commit and the date of the run.
pub(super) fn store(series: &str, release: &str, run: &Run, made: [&str; 2]) -> Result<()> {
    let mut kernels = read()?;
    let old = kernels.get(series);
    let old = old.filter(|old| old["release"] == release);
    let new = summary(release, run, made, old);
    kernels.insert(series.to_owned(), new);
    let text = serde_json::to_string_pretty(&kernels).context("write figures")? + "\n";
    fs::write(cargo::root().join(DATA), text)?;
    fs::write(cargo::root().join("docs/dev/kernels.md"), page(&kernels))?;
    let support = cargo::root().join(SUPPORT);
    let text = renewed(&fs::read_to_string(&support)?, &results(&kernels));
    let text = text.with_context(|| format!("{SUPPORT} has no table of kernels"))?;
    fs::write(support, text)
}

/// Returns the text with another table between `MARKS`; None if it lacks them.
fn renewed(text: &str, table: &str) -> Option<String> {
    let (before, rest) = text.split_once(MARKS[0])?;
    let (_, after) = rest.split_once(MARKS[1])?;
    Some([before, MARKS[0], table, MARKS[1], after].concat())
}

/// Returns a line for each program that is over `BUDGET` on a kernel in `DATA`.
pub(crate) fn over_budget() -> Result<Vec<String>> {
    Ok(above(&read()?, BUDGET))
}

fn above(kernels: &Kernels, budget: u64) -> Vec<String> {
    let mut found = Vec::new();
    for (series, kernel) in kernels {
        for (program, figures) in kernel["programs"].as_object().into_iter().flatten() {
            let count = figures["instructions"].as_u64().unwrap_or_default();
            if count > budget {
                let text = format!("{count} verified instructions, {budget} are allowed");
                found.push(format!("{program} on {series}: {text}"));
            }
        }
    }
    found
}

/// Returns a run's results as JSON, with those of `old` that it lacks, and the highest figures.
fn summary(release: &str, run: &Run, made: [&str; 2], old: Option<&Value>) -> Value {
    let mut programs = Map::new();
    for line in &run.figures {
        let words: Vec<_> = line.split(' ').collect();
        let after = |name: &str| {
            let pair = words.windows(2).find(|pair| pair[0] == name)?;
            pair[1].parse::<u64>().ok()
        };
        if let (Some(program), Some(count), Some(time)) =
            (words.get(2), after("instructions"), after("microseconds"))
        {
            let known = programs.entry(*program).or_insert(json!({}));
            for (name, figure) in [
                ("instructions", count),
                ("milliseconds", time.div_ceil(1000)),
            ] {
                known[name] = figure.max(known[name].as_u64().unwrap_or(0)).into();
            }
        }
    }
    let old = old.unwrap_or(&Value::Null);
    let mut stages = old["stages"].as_array().cloned().unwrap_or_default();
    for stage in &run.stages {
        let new = json!({
            "name": stage.name, "passed": stage.tally.passed, "failed": stage.tally.failed,
            "failure": stage.failure, "seconds": stage.time.as_secs(), "failures": stage.failures,
            "commit": made[0],
        });
        match stages.iter_mut().find(|old| old["name"] == *stage.name) {
            Some(old) => *old = new,
            None => stages.push(new),
        }
    }
    let or_old = |name: &str, new: Option<Value>| new.unwrap_or_else(|| old[name].clone());
    json!({
        "commit": made[0], "date": made[1], "release": release, "version": run.version, "stages": stages,
        "attached": or_old("attached", run.attached.clone().map(Value::from)),
        "programs": or_old("programs", (!programs.is_empty()).then_some(programs.into())),
        "finished": run.finished, "seconds": run.time.as_secs(),
    })
}

/// Returns the names of all series in their order.
fn series(kernels: &Kernels) -> Vec<&str> {
    let mut series: Vec<_> = kernels.keys().map(String::as_str).collect();
    series.sort_by(|a, b| compare(a, b));
    series
}

/// Returns the table of what passed on each kernel.
fn results(kernels: &Kernels) -> String {
    let fields = ["version", "commit", "date", "attached"];
    let head = "kernel,Debian's package,commit,date,attached by".split(',');
    let rows = series(kernels).into_iter().map(|name| {
        let kernel = &kernels[name];
        let fields = fields.map(|field| kernel[field].as_str().unwrap_or("?").to_owned());
        let tests = STAGES.iter().map(|stage| tests(kernel, stage));
        let first = [name.to_owned()].into_iter();
        first.chain(fields).chain(tests).collect()
    });
    table(head.chain(STAGES), rows)
}

fn page(kernels: &Kernels) -> String {
    let series = series(kernels);
    let mut programs = BTreeSet::new();
    for kernel in kernels.values() {
        let names = kernel["programs"].as_object().into_iter().flatten();
        programs.extend(names.map(|(name, _)| name.as_str()));
    }
    let figures = |field: &str| {
        let rows = programs.iter().map(|program| {
            let figures = series.iter().map(|name| {
                let figure = kernels[*name]["programs"][*program][field].as_u64();
                figure.map_or_else(|| "not run".to_owned(), |figure| figure.to_string())
            });
            let first = [format!("`{program}`")].into_iter();
            first.chain(figures).collect()
        });
        table(["program"].into_iter().chain(series.iter().copied()), rows)
    };
    format!(
        include_str!("page.md"),
        instructions = figures("instructions"),
        milliseconds = figures("milliseconds"),
    )
}

fn tests(kernel: &Value, name: &str) -> String {
    let mut stages = kernel["stages"].as_array().into_iter().flatten();
    let Some(stage) = stages.find(|stage| stage["name"] == name) else {
        return "not run".to_owned();
    };
    let count = |field: &str| stage[field].as_u64().unwrap_or_default();
    let passed = count("passed");
    let all = passed + count("failed");
    let end = stage["failure"].as_str();
    let end = end.filter(|end| end.starts_with("not"));
    let commit = stage["commit"].as_str();
    let commit = commit.filter(|_| stage["commit"] != kernel["commit"]);
    let ends = end.into_iter().chain(commit);
    let ends: String = ends.map(|end| format!(", {end}")).collect();
    format!("{passed} of {all}{ends}")
}

/// Returns a table in Markdown.
fn table<'a>(
    head: impl Iterator<Item = &'a str>,
    rows: impl Iterator<Item = Vec<String>>,
) -> String {
    let head: Vec<_> = head.map(str::to_owned).collect();
    let line = vec!["---".to_owned(); head.len()];
    let rows = [head, line].into_iter().chain(rows);
    let rows = rows.map(|cells| format!("| {} |", cells.join(" | ")));
    rows.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(lines: &str) -> Run {
        let mut run = Run::default();
        lines.lines().for_each(|line| run.read(line));
        run
    }

    #[test]
    fn results_that_were_not_rerun_stay_with_their_commit_and_programs_have_the_highest_figures() {
        let first = run("@@ version 6.7.192-2\n@@ begin packet\n\
            @@ figure ingress redirects false log false instructions 7 microseconds 2500\n\
            @@ figure ingress redirects true log false instructions 300000 microseconds 900\n\
            @@ attached by clsact\ntest result: ok. 1 passed; 0 failed; 0 ignored\n\
            @@ end packet 0 12\n");
        let again = run("@@ version 6.7.192-2\n@@ begin serve\n\
            test result: ok. 2 passed; 0 failed; 0 ignored\n");
        let made = ["c2", "2026-01-02"];
        let first = summary("6.7.0-9", &first, ["c1", "2026-01-01"], None);
        let mut kernels = Kernels::new();
        let none = summary("6.12.1", &Run::default(), made, None);
        kernels.insert("6.12".to_owned(), none);
        let second = summary("6.7.0-9", &again, made, Some(&first));
        kernels.insert("6.7".to_owned(), second);
        let old = format!("before\n{}old{}\nafter", MARKS[0], MARKS[1]);
        let support = renewed(&old, &results(&kernels)).expect("marks");
        assert!(!support.contains("old") && support.ends_with("\nafter"));
        assert_eq!(renewed("no marks", ""), None);
        let page = page(&kernels) + &support;
        for line in [
            "| 6.7 | 6.7.192-2 | c2 | 2026-01-02 | clsact | 1 of 1, c1 | not run | not run | 2 of 2, not finished | not run | not run |\n\
             | 6.12 | ? | c2 | 2026-01-02 | ? | not run | not run | not run |",
            "| program | 6.7 | 6.12 |",
            "| `ingress` | 300000 | not run |",
            "| `ingress` | 3 | not run |",
        ] {
            assert!(page.contains(line), "{line}\n{page}");
        }
        assert_eq!(above(&kernels, 300_000), [""; 0]);
        let found = above(&kernels, 299_999);
        assert!(found[0].starts_with("ingress on 6.7: 300000"), "{found:?}");
    }
}
