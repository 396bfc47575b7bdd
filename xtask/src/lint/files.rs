// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Checks single files: licence line, length, width of comments, no paths of one machine.

use anyhow::Result;

use super::File;
use crate::{cargo, fs};

/// The most columns of a comment line.
const COMMENT_COLUMNS: usize = 100;
/// The most lines of a Rust file.
const MAX_LINES: usize = 500;

/// Paths that a committed file must not contain, because they exist on one machine only.
const MACHINE_PATHS: [&str; 3] = [
    concat!("/wo", "rk/"),
    concat!("/ro", "ot/"),
    concat!("/ho", "me/"),
];

/// Reads every text file that git tracks or would add.
pub(super) fn read_all() -> Result<Vec<File>> {
    let names = cargo::git("ls-files -z --cached --others --exclude-standard")?;
    let mut files = Vec::new();
    for path in names.split_terminator('\0') {
        let full = cargo::root().join(path);
        // Skip a tracked file that is deleted, and a link to a folder.
        if !full.is_file() {
            continue;
        }
        if let Ok(text) = String::from_utf8(fs::read(&full)?) {
            files.push(File::new(path, &text));
        }
    }
    Ok(files)
}

/// Returns a message for each broken rule. A licence is in line 1 of Rust, in line 2 of a script.
pub(super) fn check(files: &[File]) -> Vec<String> {
    let wide = format!("break the comment at {COMMENT_COLUMNS} columns");
    let long = format!("split the file, {MAX_LINES} lines are the most");
    let mut found = Vec::new();
    for file in files {
        let mut complain =
            |line: usize, text: &str| found.push(format!("{}:{line}: {text}", file.path));
        let licence = match (file.text.starts_with("#!"), file.is_rust()) {
            (true, _) => Some((2, "# SPDX-License-Identifier: ")),
            (_, true) => Some((1, "// SPDX-License-Identifier: ")),
            _ => None,
        };
        let lines = || (1_usize..).zip(file.text.lines());
        if let Some((line, prefix)) = licence
            && !lines().any(|(number, text)| number == line && text.starts_with(prefix))
        {
            let text = format!("write the licence here: {prefix}Apache-2.0 OR MIT");
            complain(line, &text);
        }
        if file.path.starts_with("deploy/chart/") && file.text.trim().is_empty() {
            complain(1, "a file of the chart is empty");
        }
        for (number, line) in lines() {
            if let Some(path) = MACHINE_PATHS.iter().find(|path| line.contains(**path)) {
                let text = format!("\"{path}\" is a path of one machine; take it out");
                complain(number, &text);
            }
            let is_comment = file.is_rust() && line.trim_start().starts_with("//");
            if is_comment && line.chars().count() > COMMENT_COLUMNS {
                complain(number, &wide);
            }
            if file.is_rust() && number == MAX_LINES + 1 {
                complain(number, &long);
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_judged() {
        let judge = |path: &str, text: &str, complaint: &str| {
            let found = check(&[File::new(path, text)]);
            assert_eq!(found.len(), usize::from(!complaint.is_empty()), "{found:?}");
            assert!(found.concat().starts_with(complaint), "{found:?}");
        };
        let rust = |text: &str| format!("// SPDX-License-Identifier: MIT\n{text}");
        let lines = |count| rust(&"x\n".repeat(count - 1));
        judge("a.rs", "//! no\n", "a.rs:1: write the licence here");
        judge("a.rs", &rust(""), "");
        judge("run", "#!/bin/sh\ntrue\n", "run:2: write the licence");
        judge("run", "#!/bin/sh\n# SPDX-License-Identifier: MIT\n", "");
        judge("a.md", "nothing", "");
        judge("deploy/chart/a", "\n", "deploy/chart/a:1: a file");
        let own = format!("fine\nsee {}x", MACHINE_PATHS[0]);
        judge("a.md", &own, "a.md:2: ");
        judge("a.md", "in network/ and at the root/ of it", "");
        // Columns count, not bytes.
        judge("a.rs", &rust(&format!("    // {}", "é".repeat(93))), "");
        let wide = format!("    // {}", "ab".repeat(93));
        judge("a.rs", &rust(&wide), "a.rs:2: break the comment");
        judge("a.rs", &lines(MAX_LINES), "");
        judge("a.rs", &lines(MAX_LINES + 1), "a.rs:501: split the file");
        judge("a.yaml", &lines(MAX_LINES + 1), "");
    }
}
