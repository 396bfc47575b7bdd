// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Writes docs/dev/kernels.md with the results of each kernel. The page is made from
//! docs/dev/kernels.json, where a run replaces only the results of its own kernel. `lint` compares
//! the programs' sizes there with a budget.

use std::collections::BTreeSet;

use anyhow::{Context, Result};
use serde_json::{Map, Value, json};

use super::{apt::compare, boot::Run};
use crate::{cargo, fs};

/// How many instructions the verifier may process for a program; its own limit is a million.
const BUDGET: u64 = 400_000;

const INTRODUCTION: &str = "# Kernels

Written by `cargo xtask kernels`, which boots Debian's kernels in qemu, one after another, and runs the project's tests in each. A kernel that is not
named here may work as well: what a kernel lacks is tried out, never guessed from its number.

Times are those of an emulated processor (qemu without KVM), about ten times those of a real one.

## Tests

Passed of all, and the seconds they took.
";

/// The tables of figures: title, the figure in the data, and an explanation.
const TABLES: [[&str; 3]; 2] = [
    [
        "Verified instructions",
        "instructions",
        "The verifier's limit is a million. Of several settings (`forwarding`, packets logged or not), the highest figure.",
    ],
    [
        "Time to load",
        "milliseconds",
        "In milliseconds of the emulated processor.",
    ],
];

const DATA: &str = "docs/dev/kernels.json";

/// The content of `DATA`. Key: the series of kernels (e.g. 6.12), value: its results.
type Kernels = Map<String, Value>;

fn read() -> Result<Kernels> {
    let kernels = serde_json::from_str(&fs::read_to_string(cargo::root().join(DATA))?);
    kernels.with_context(|| format!("parse {DATA}"))
}

/// Stores the results of a kernel and writes the page. Earlier results of the same kernel version
/// stay for stages that were not run now.
pub(super) fn store(series: &str, release: &str, run: &Run) -> Result<()> {
    let mut kernels = read()?;
    let old = kernels.get(series);
    let old = old.filter(|old| old["release"] == release);
    let new = summary(release, run, old);
    kernels.insert(series.to_owned(), new);
    let text = serde_json::to_string_pretty(&kernels).context("write figures")? + "\n";
    fs::write(cargo::root().join(DATA), text)?;
    fs::write(cargo::root().join("docs/dev/kernels.md"), page(&kernels))
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

/// Returns a run's results as JSON, with those of `old` that it lacks; of a program with several
/// settings the highest figures.
fn summary(release: &str, run: &Run, old: Option<&Value>) -> Value {
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
        });
        match stages.iter_mut().find(|old| old["name"] == *stage.name) {
            Some(old) => *old = new,
            None => stages.push(new),
        }
    }
    let or_old = |name: &str, new: Option<Value>| new.unwrap_or_else(|| old[name].clone());
    json!({
        "release": release, "version": run.version, "stages": stages,
        "attached": or_old("attached", run.attached.clone().map(Value::from)),
        "programs": or_old("programs", (!programs.is_empty()).then_some(programs.into())),
        "finished": run.finished, "seconds": run.time.as_secs(),
    })
}

fn page(kernels: &Kernels) -> String {
    let mut series: Vec<_> = kernels.keys().map(String::as_str).collect();
    series.sort_by(|a, b| compare(a, b));
    let (mut stages, mut programs) = (Vec::new(), BTreeSet::new());
    for kernel in series.iter().map(|name| &kernels[*name]) {
        let names = kernel["stages"].as_array().into_iter().flatten();
        for stage in names.filter_map(|stage| stage["name"].as_str()) {
            if !stages.contains(&stage) {
                stages.push(stage);
            }
        }
        let names = kernel["programs"].as_object().into_iter().flatten();
        programs.extend(names.map(|(name, _)| name.as_str()));
    }
    let mut page = INTRODUCTION.to_owned();
    let head = [&["kernel", "package", "attached by"], &stages[..]].concat();
    let rows = series.iter().map(|name| {
        let kernel = &kernels[*name];
        let text = |field: &str| kernel[field].as_str().unwrap_or("?").to_owned();
        let first = [(*name).to_owned(), text("version"), text("attached")];
        let tests = stages.iter().map(|stage| tests(kernel, stage));
        first.into_iter().chain(tests).collect()
    });
    table(&mut page, &head, rows);
    for [title, field, about] in TABLES {
        page += &format!("\n## {title}\n\n{about}\n");
        let rows = programs.iter().map(|program| {
            let figures = series.iter().map(|name| {
                let figure = kernels[*name]["programs"][*program][field].as_u64();
                figure.map_or_else(|| "not run".to_owned(), |figure| figure.to_string())
            });
            [format!("`{program}`")]
                .into_iter()
                .chain(figures)
                .collect()
        });
        table(&mut page, &[&["program"], &series[..]].concat(), rows);
    }
    page
}

fn tests(kernel: &Value, name: &str) -> String {
    let mut stages = kernel["stages"].as_array().into_iter().flatten();
    let Some(stage) = stages.find(|stage| stage["name"] == name) else {
        return "not run".to_owned();
    };
    let count = |field: &str| stage[field].as_u64().unwrap_or_default();
    let (passed, seconds) = (count("passed"), count("seconds"));
    let all = passed + count("failed");
    let end = stage["failure"]
        .as_str()
        .filter(|end| end.starts_with("not"));
    let end = end.map_or_else(String::new, |end| format!(", {end}"));
    format!("{passed} of {all}, {seconds} s{end}")
}

/// Adds a table in Markdown.
fn table(page: &mut String, head: &[&str], rows: impl Iterator<Item = Vec<String>>) {
    let row = |cells: &[&str]| format!("| {} |\n", cells.join(" | "));
    *page += &format!("\n{}{}", row(head), row(&vec!["---"; head.len()]));
    for cells in rows {
        *page += &row(&cells.iter().map(String::as_str).collect::<Vec<_>>());
    }
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
    fn the_page_keeps_results_that_were_not_rerun_and_has_each_programs_highest_figures() {
        let first = run("@@ version 6.7.192-2\n@@ begin programs\n\
            @@ figure ingress redirects false log false instructions 7 microseconds 2500\n\
            @@ figure ingress redirects true log false instructions 300000 microseconds 900\n\
            @@ attached by clsact\ntest result: ok. 1 passed; 0 failed; 0 ignored\n\
            @@ end programs 0 12\n");
        let again = run("@@ version 6.7.192-2\n@@ begin serve\n\
            test result: ok. 2 passed; 0 failed; 0 ignored\n");
        let first = summary("6.7.0-9", &first, None);
        let mut kernels = Kernels::new();
        kernels.insert("6.12".to_owned(), summary("6.12.1", &Run::default(), None));
        kernels.insert("6.7".to_owned(), summary("6.7.0-9", &again, Some(&first)));
        let page = page(&kernels);
        for line in [
            "| 6.7 | 6.7.192-2 | clsact | 1 of 1, 12 s | 2 of 2, 0 s, not finished |\n| 6.12 | ? | ? | not run | not run |",
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
