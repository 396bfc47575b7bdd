// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Writes docs/dev/kernels.md with the results of each kernel. The page is made from
//! docs/dev/kernels.json, where a run replaces only the results of its own kernel. `lint` compares
//! the programs' sizes there with a budget.

use std::{collections::BTreeMap, path::PathBuf};

use anyhow::{Context, Result};
use serde_json::{Map, Value, json};

use super::{boot::Run, packages::compare};
use crate::{cargo, fs};

/// How many instructions the verifier may process for a program; its own limit is a million.
const BUDGET: u64 = 400_000;

const INTRODUCTION: &str = "# Kernels

Written by `cargo xtask kernels`, which boots Debian's kernels in qemu, one after another, and runs the project's tests in each. A kernel that is not
named here may work as well: what a kernel lacks is tried out, never guessed from its number.

Times are those of an emulated processor (qemu without KVM), about ten times those of a real one.
";

fn data_file() -> PathBuf {
    cargo::root().join("docs/dev/kernels.json")
}

/// The content of docs/dev/kernels.json. Key: the series of kernels (e.g. 6.12), value: its
/// results.
type Kernels = Map<String, Value>;

fn read() -> Result<Kernels> {
    let file = data_file();
    if !file.exists() {
        return Ok(Kernels::new());
    }
    let kernels = serde_json::from_str(&fs::read_to_string(&file)?);
    kernels.with_context(|| format!("parse {}", file.display()))
}

/// Stores the results of a kernel and writes the page. Earlier results of the same kernel version
/// stay for stages that were not run now.
pub(super) fn store(series: &str, release: &str, run: &Run) -> Result<()> {
    let mut kernels = read()?;
    let mut new = summary(release, run);
    if let Some(old) = kernels.get(series)
        && old["release"] == release
    {
        keep(old, &mut new);
    }
    kernels.insert(series.to_owned(), new);
    let text = serde_json::to_string_pretty(&kernels).context("write figures")? + "\n";
    fs::write(data_file(), text)?;
    fs::write(cargo::root().join("docs/dev/kernels.md"), render(&kernels))
}

/// Copies results that `new` lacks from `old`.
fn keep(old: &Value, new: &mut Value) {
    let stages = |kernel: &Value| kernel["stages"].as_array().cloned().unwrap_or_default();
    let mut all = stages(old);
    for stage in stages(new) {
        match all.iter_mut().find(|old| old["name"] == stage["name"]) {
            Some(old) => *old = stage,
            None => all.push(stage),
        }
    }
    new["stages"] = all.into();
    for field in ["attached", "programs"] {
        if new[field].is_null() || new[field] == json!({}) {
            new[field] = old[field].clone();
        }
    }
}

/// Returns a line for each program that is over `BUDGET` on a kernel in docs/dev/kernels.json.
pub(crate) fn over_budget() -> Result<Vec<String>> {
    Ok(above(&read()?, BUDGET))
}

fn above(kernels: &Kernels, budget: u64) -> Vec<String> {
    let mut found = Vec::new();
    for (series, kernel) in kernels {
        for (program, figures) in kernel["programs"].as_object().into_iter().flatten() {
            let instructions = figures["instructions"].as_u64().unwrap_or_default();
            if instructions > budget {
                found.push(format!(
                    "{program} on {series}: {instructions} verified instructions, {budget} are allowed"
                ));
            }
        }
    }
    found
}

/// Returns a run's results as JSON; for a program with several settings the highest figures.
fn summary(release: &str, run: &Run) -> Value {
    let mut programs: BTreeMap<&str, (u64, u64, u64)> = BTreeMap::new();
    for line in &run.figures {
        let words: Vec<_> = line.split(' ').collect();
        let after = |name: &str| {
            let place = words.iter().position(|word| *word == name)?;
            words.get(place + 1)?.parse::<u64>().ok()
        };
        if let (Some(program), Some(instructions), Some(time)) =
            (words.get(2), after("instructions"), after("microseconds"))
        {
            let held = programs.entry(program).or_default();
            *held = (held.0.max(instructions), held.1.max(time), held.2 + 1);
        }
    }
    let programs: Map<_, _> = programs
        .into_iter()
        .map(|(name, (instructions, time, settings))| {
            let figures = json!({
                "instructions": instructions, "milliseconds": time.div_ceil(1000), "settings": settings
            });
            (name.to_owned(), figures)
        })
        .collect();
    let stages: Vec<_> = run
        .stages
        .iter()
        .map(|stage| {
            json!({
                "name": stage.name, "passed": stage.tally.passed, "failed": stage.tally.failed,
                "status": stage.status, "seconds": stage.seconds, "failures": stage.failures,
            })
        })
        .collect();
    json!({
        "release": release, "version": run.version, "attached": run.attached, "programs": programs, "stages": stages,
        "finished": run.finished, "seconds": run.time.as_secs(),
    })
}

fn render(kernels: &Kernels) -> String {
    let mut series: Vec<_> = kernels.keys().map(String::as_str).collect();
    series.sort_by(|a, b| compare(a, b));
    let mut stages: Vec<&str> = Vec::new();
    let mut programs: Vec<&str> = Vec::new();
    for name in &series {
        let names = kernels[*name]["stages"].as_array().into_iter().flatten();
        for stage in names.filter_map(|stage| stage["name"].as_str()) {
            if !stages.contains(&stage) {
                stages.push(stage);
            }
        }
        let names = kernels[*name]["programs"].as_object().into_iter().flatten();
        for (program, _) in names {
            if !programs.contains(&program.as_str()) {
                programs.push(program);
            }
        }
    }
    let mut page =
        format!("{INTRODUCTION}\n## Tests\n\nPassed of all, and the seconds they took.\n\n");
    page.push_str(&row(["kernel", "package", "attached by"]
        .into_iter()
        .chain(stages.iter().copied())));
    page.push_str(&row((0..stages.len() + 3).map(|_| "---")));
    for name in &series {
        let kernel = &kernels[*name];
        let text = |field: &str| kernel[field].as_str().unwrap_or("?").to_owned();
        let cells = stages.iter().map(|stage| tests(kernel, stage));
        let first = [(*name).to_owned(), text("version"), text("attached")];
        page.push_str(&row(first.into_iter().chain(cells)));
    }
    for (title, field, about) in [
        (
            "Verified instructions",
            "instructions",
            "The verifier's limit is a million. Of several settings (`forwarding`, packets logged or not), the highest figure.",
        ),
        (
            "Time to load",
            "milliseconds",
            "In milliseconds of the emulated processor.",
        ),
    ] {
        page.push_str(&format!("\n## {title}\n\n{about}\n\n"));
        page.push_str(&row(["program"].into_iter().chain(series.iter().copied())));
        page.push_str(&row((0..=series.len()).map(|_| "---")));
        for program in &programs {
            let cells = series.iter().map(|name| {
                let figure = kernels[*name]["programs"][*program][field].as_u64();
                figure.map_or_else(|| "not run".to_owned(), |figure| figure.to_string())
            });
            page.push_str(&row([format!("`{program}`")].into_iter().chain(cells)));
        }
    }
    page
}

fn tests(kernel: &Value, stage: &str) -> String {
    let mut stages = kernel["stages"].as_array().into_iter().flatten();
    let Some(found) = stages.find(|candidate| candidate["name"] == stage) else {
        return "not run".to_owned();
    };
    let count = |field: &str| found[field].as_u64().unwrap_or_default();
    let (passed, failed) = (count("passed"), count("failed"));
    let end = if found["status"].is_null() {
        ", not finished"
    } else {
        ""
    };
    format!(
        "{passed} of {}, {} s{end}",
        passed + failed,
        count("seconds")
    )
}

fn row(cells: impl IntoIterator<Item = impl AsRef<str>>) -> String {
    let cells: Vec<_> = cells
        .into_iter()
        .map(|cell| cell.as_ref().to_owned())
        .collect();
    format!("| {} |\n", cells.join(" | "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run() -> Run {
        let mut run = Run::default();
        for line in [
            "@@ version 6.1.192-2",
            "@@ begin programs",
            "@@ figure ingress redirects false log false instructions 7 microseconds 2500",
            "@@ figure ingress redirects true log false instructions 300000 microseconds 900",
            "@@ attached by clsact",
            "test result: ok. 1 passed; 0 failed; 0 ignored",
            "@@ end programs 0 12",
        ] {
            run.read(line);
        }
        run
    }

    #[test]
    fn the_page_has_each_programs_highest_figures() {
        let mut kernels = Kernels::new();
        kernels.insert("6.12".to_owned(), summary("6.12.1", &Run::default()));
        kernels.insert("6.1".to_owned(), summary("6.1.0-9", &run()));
        let page = render(&kernels);
        for line in [
            "| 6.1 | 6.1.192-2 | clsact | 1 of 1, 12 s |\n| 6.12 | ? | ? | not run |",
            "| program | 6.1 | 6.12 |",
            "| `ingress` | 300000 | not run |",
            "| `ingress` | 3 | not run |",
        ] {
            assert!(page.contains(line), "{line}\n{page}");
        }
    }

    #[test]
    fn results_of_stages_that_were_not_rerun_are_kept() {
        let mut again = Run::default();
        for line in [
            "@@ begin serve",
            "test result: ok. 2 passed; 0 failed; 0 ignored",
            "@@ end serve 0 9",
        ] {
            again.read(line);
        }
        let mut new = summary("6.1.0-9", &again);
        keep(&summary("6.1.0-9", &run()), &mut new);
        assert_eq!(tests(&new, "programs"), "1 of 1, 12 s");
        assert_eq!(tests(&new, "serve"), "2 of 2, 9 s");
        assert_eq!(new["attached"], "clsact");
        assert_eq!(new["programs"]["ingress"]["instructions"], 300_000);
    }

    #[test]
    fn a_program_over_the_budget_is_named_with_its_kernel() {
        let mut kernels = Kernels::new();
        kernels.insert("6.1".to_owned(), summary("6.1.0-9", &run()));
        assert_eq!(above(&kernels, 300_000), Vec::<String>::new());
        let found = above(&kernels, 299_999);
        assert_eq!(found.len(), 1);
        assert!(found[0].starts_with("ingress on 6.1: 300000"), "{found:?}");
    }
}
