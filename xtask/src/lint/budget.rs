// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Compares each package's lines with the `[package.metadata.budget]` of its Cargo.toml.

use std::{collections::BTreeMap, path::Path};

use anyhow::{Context, Result};

use super::File;
use crate::{
    cargo::{self, Workspace},
    fs,
};

/// Packages that no release contains.
const UNSHIPPED: [&str; 2] = ["lab", "xtask"];
/// The kinds of lines, which are the keys of a budget: Rust that is shipped; harnesses (benches and
/// examples); all other Rust; and cases that are text, of which ten lines count as one.
const KINDS: [&str; 4] = ["shipped", "run", "tests", "cases"];
/// A count may be so many hundredths below its budget.
const SLACK: usize = 2;

/// A package's lines of one kind.
pub(super) struct Entry {
    /// The package's folder.
    folder: String,
    kind: &'static str,
    budget: usize,
    count: usize,
}

/// Returns all entries that have a budget or lines.
pub(super) fn entries(files: &[File], workspace: &Workspace) -> Vec<Entry> {
    let folders = workspace.folders();
    let names: Vec<_> = folders.iter().map(|(_, folder)| folder.as_str()).collect();
    let counts = count(files, &names);
    let entry = |name: &str, folder: &String, kind| Entry {
        folder: folder.clone(),
        kind,
        budget: workspace.budget(name, kind),
        count: counts.get(&(folder.as_str(), kind)).copied().unwrap_or(0),
    };
    let of_package = |(name, folder)| KINDS.map(|kind| entry(name, folder, kind));
    let all = folders.iter().map(|(name, folder)| (name.as_str(), folder));
    let all = all.flat_map(of_package);
    all.filter(|entry| entry.count.max(entry.budget) > 0)
        .collect()
}

/// Returns a line for each entry that is above its budget or too far below it.
pub(super) fn check(entries: &[Entry]) -> Vec<String> {
    let complaint = |entry: &Entry| {
        let (budget, count) = (entry.budget, entry.count);
        let remedy = if count > budget {
            "delete some, or raise the number and say why in the commit"
        } else if count * 100 < budget * (100 - SLACK) {
            "`cargo xtask lint --lower` lowers the number"
        } else {
            return None;
        };
        let what = format!("{}/Cargo.toml: {} = {budget}", entry.folder, entry.kind);
        Some(format!("{what}, but there are {count} lines: {remedy}"))
    };
    entries.iter().filter_map(complaint).collect()
}

/// Returns the sums of shipped and of all lines, for people.
pub(super) fn sums(entries: &[Entry]) -> String {
    let shipped = entries.iter().filter(|entry| entry.kind == KINDS[0]);
    let shipped: usize = shipped.map(|entry| entry.count).sum();
    let all: usize = entries.iter().map(|entry| entry.count).sum();
    format!("{shipped} lines are shipped, of {all}")
}

/// Writes each count below its budget into the Cargo.toml.
pub(super) fn lower(entries: &[Entry]) -> Result<()> {
    for entry in entries.iter().filter(|entry| entry.count < entry.budget) {
        let file = cargo::root().join(&entry.folder).join("Cargo.toml");
        let text = lowered(&fs::read_to_string(&file)?, entry);
        let text = text.with_context(|| format!("{} has no budget", file.display()))?;
        fs::write(&file, text)?;
        println!(
            "{} {}: {} -> {}",
            entry.folder, entry.kind, entry.budget, entry.count
        );
    }
    Ok(())
}

/// Returns the Cargo.toml with the entry's count; None if it does not have the entry's budget.
fn lowered(text: &str, entry: &Entry) -> Option<String> {
    let at = text.find("\n[package.metadata.budget]\n")?;
    let (before, table) = text.split_at(at);
    let line = |number| format!("\n{} = {number}\n", entry.kind);
    let old = line(entry.budget);
    let is_there = table.contains(&old);
    is_there.then(|| format!("{before}{}", table.replacen(&old, &line(entry.count), 1)))
}

/// Counts lines by the package's folder and the kind.
fn count<'a>(files: &[File], folders: &[&'a str]) -> BTreeMap<(&'a str, &'static str), usize> {
    let read: Vec<_> = files.iter().map(shipped).collect();
    let modules: Vec<_> = read.iter().flat_map(|(_, modules)| modules).collect();
    let is_test = |path: &str| {
        let modules = modules.iter();
        let mut rests = modules.filter_map(|name| path.strip_prefix(name.as_str()));
        rests.any(|rest| rest == ".rs" || rest.starts_with('/'))
    };
    let mut counts: BTreeMap<_, usize> = BTreeMap::new();
    for (file, (shipped, _)) in files.iter().zip(&read) {
        // The cases of conformance are those of a test program there.
        let path = &file.path;
        let path = path.replace("conformance/cases/", "proxy-user/tests/conformance/");
        let owners = folders.iter();
        let owners = owners.filter(|folder| Path::new(&path).starts_with(folder));
        let Some(folder) = owners.max_by_key(|folder| folder.len()) else {
            continue;
        };
        let inner = path[folder.len()..].trim_start_matches('/');
        let (kind, shipped) = match (inner.split('/').next(), file.is_rust()) {
            (Some("tests"), false) => ("cases", 0),
            (_, false) => continue,
            (Some("benches" | "examples"), _) => ("run", 0),
            // The program that writes pages for a release.
            _ if inner.starts_with("src/pages/") => ("run", 0),
            (Some("tests"), _) => ("tests", 0),
            _ if UNSHIPPED.contains(folder) || is_test(&path) => ("tests", 0),
            _ => ("tests", *shipped),
        };
        *counts.entry((*folder, "shipped")).or_default() += shipped;
        *counts.entry((*folder, kind)).or_default() += file.text.lines().count() - shipped;
    }
    for ((_, kind), count) in &mut counts {
        *count = count.div_ceil(if *kind == "cases" { 10 } else { 1 });
    }
    counts
}

/// Returns how many lines of a Rust file are in no item of tests, and the paths,
/// without `.rs`, of the modules that are such items.
fn shipped(file: &File) -> (usize, Vec<String>) {
    let (mut count, mut modules) = (0, Vec::new());
    let folder = Path::new(&file.path).parent().unwrap_or(Path::new(""));
    let stem = Path::new(&file.path).file_stem().unwrap_or_default();
    let below = match stem.to_str() {
        Some("mod" | "lib" | "main") => folder.to_owned(),
        _ => folder.join(stem),
    };
    let indent = |line: &str| line.len() - line.trim_start().len();
    let mut lines = file.text.lines();
    while let Some(first) = lines.next() {
        let starts = ["#[cfg(test)]", "#[cfg(any(test,"];
        if !starts.iter().any(|start| first.trim().starts_with(start)) {
            count += 1;
            continue;
        }
        let (mut path, mut head) = (None, None);
        for line in lines.by_ref().filter(|line| indent(line) == indent(first)) {
            let line = line.trim();
            if let Some(text) = line.strip_prefix("#[path = \"") {
                path = Some(folder.join(text.trim_end_matches(".rs\"]")));
            } else if !line.starts_with("#[") {
                let head = *head.get_or_insert(line);
                if head.ends_with([';', '}']) || ["}", "};"].contains(&line) {
                    break;
                }
            }
        }
        let name = head.and_then(|head| head.strip_suffix(';')?.rsplit_once("mod "));
        let module = name.map(|(_, name)| path.unwrap_or(below.join(name)));
        modules.extend(module.map(|path| path.display().to_string()));
    }
    (count, modules)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_counted_by_package_and_kind() {
        const LIB: &str = "1\n#[cfg(any(test, feature = \"x\"))]\nmod cases;\nmod b;\n#[cfg(test)]\n\
            fn f() {\n    \"\n{}\n\"\n}\n2\n";
        let files = [
            ("a/src/lib.rs", LIB),
            ("a/src/cases.rs", "3\n4\n"),
            ("a/src/cases/more.rs", "5\n"),
            ("a/src/cases_of.rs", "6\n"),
            (
                "a/src/b.rs",
                "7\n#[cfg(test)]\n#[path = \"b_tests.rs\"]\nmod tests;\n",
            ),
            ("a/src/b_tests.rs", "8\n"),
            ("a/tests/x/main.rs", "9\n"),
            ("a/tests/x/kept/y", "1\n2\n"),
            ("a/benches/z.rs", "3\n"),
            ("a/inner/src/lib.rs", "4\n"),
            ("lab/src/lib.rs", "5\n"),
            ("README.md", "6\n"),
        ];
        let files = files.map(|(path, text)| File::new(path, text));
        let counts = count(&files, &["a", "a/inner", "lab"]);
        let counts: Vec<_> = counts.into_iter().filter(|(_, count)| *count > 0).collect();
        let counts = counts.iter();
        let counts = counts.map(|((of, kind), n)| format!("{of} {kind} {n}, "));
        let counts: String = counts.collect();
        let wanted =
            "a cases 1, a run 1, a shipped 5, a tests 16, a/inner shipped 1, lab tests 1, ";
        assert_eq!(counts, wanted);
    }

    #[test]
    fn a_count_above_its_budget_or_far_below_it_is_refused_and_only_lowered() {
        let entry = |count| Entry {
            folder: "a".to_owned(),
            kind: "tests",
            budget: 100,
            count,
        };
        let found = |count| check(&[entry(count)]);
        assert!(found(101)[0].starts_with("a/Cargo.toml: tests = 100, but there are 101 lines"));
        assert!(found(97)[0].ends_with("`cargo xtask lint --lower` lowers the number"));
        assert_eq!([found(98), found(100)].concat(), [""; 0]);
        let text = "x\ntests = 100\n\n[package.metadata.budget]\nshipped = 100\ntests = 100\n";
        let after = text.replace("shipped = 100\ntests = 100", "shipped = 100\ntests = 97");
        assert_eq!(lowered(text, &entry(97)), Some(after));
        assert_eq!(lowered("tests = 100\n", &entry(97)), None);
    }
}
