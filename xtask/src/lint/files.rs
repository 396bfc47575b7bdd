// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Checks single files: licence lines, length, no paths of a development machine.

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

/// Returns a message for each file whose licence is missing. It must be in line 1 of a Rust file,
/// and in line 2 of a script.
pub(super) fn licence_lines(files: &[File]) -> Vec<String> {
    let complaint = |file: &File| {
        let (line, prefix) = match (file.text.starts_with("#!"), file.is_rust()) {
            (true, _) => (2, "# SPDX-License-Identifier: "),
            (_, true) => (1, "// SPDX-License-Identifier: "),
            _ => return None,
        };
        let text = file.text.lines().nth(line - 1).unwrap_or_default();
        let complaint = format!("write the licence here: {prefix}Apache-2.0 OR MIT");
        (!text.starts_with(prefix)).then(|| format!("{}:{line}: {complaint}", file.path))
    };
    files.iter().filter_map(complaint).collect()
}

/// Returns a message for each line of the files of which `complaint` has one.
fn lines_of<'a>(
    files: impl IntoIterator<Item = &'a File>,
    complaint: impl Fn(&str) -> Option<String>,
) -> Vec<String> {
    let mut found = Vec::new();
    for file in files {
        for (number, line) in (1..).zip(file.text.lines()) {
            let complaint = complaint(line);
            found.extend(complaint.map(|text| format!("{}:{number}: {text}", file.path)));
        }
    }
    found
}

pub(super) fn machine_paths(files: &[File]) -> Vec<String> {
    lines_of(files, |line| {
        let path = MACHINE_PATHS.iter().find(|path| line.contains(**path))?;
        Some(format!("\"{path}\" is a path of one machine; take it out"))
    })
}

/// Returns a line for each Rust file with more than `MAX_LINES` lines.
pub(super) fn too_long(files: &[File]) -> Vec<String> {
    let rust = files.iter().filter(|file| file.is_rust());
    let complaint = |file: &File| {
        let (lines, path) = (file.text.lines().count(), &file.path);
        let text = format!("{path}: {lines} lines; split it, {MAX_LINES} is the most");
        (lines > MAX_LINES).then_some(text)
    };
    rust.filter_map(complaint).collect()
}

/// Returns a line for each comment line of a Rust file with more than `COMMENT_COLUMNS` columns.
pub(super) fn wide_comments(files: &[File]) -> Vec<String> {
    lines_of(files.iter().filter(|file| file.is_rust()), |line| {
        let is_wide = line.chars().count() > COMMENT_COLUMNS;
        (is_wide && line.trim_start().starts_with("//"))
            .then(|| format!("break the comment at {COMMENT_COLUMNS} columns"))
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case(
        licence_lines,
        "a.rs",
        "//! no\n",
        "a.rs:1: write the licence here: // SPDX"
    )]
    #[case(licence_lines, "a.rs", "// SPDX-License-Identifier: MIT\n", "")]
    #[case(
        licence_lines,
        "run",
        "#!/bin/sh\ntrue\n",
        "run:2: write the licence here: # SPDX"
    )]
    #[case(
        licence_lines,
        "run",
        "#!/bin/sh\n# SPDX-License-Identifier: MIT\n",
        ""
    )]
    #[case(licence_lines, "a.md", "nothing", "")]
    #[case(machine_paths, "a.md", &format!("fine\nsee {}x", MACHINE_PATHS[0]), "a.md:2: ")]
    #[case(machine_paths, "a.md", "in network/ and at the root/ of it", "")]
    // Columns count, not bytes.
    #[case(wide_comments, "a.rs", &format!("    // {}", "é".repeat(93)), "")]
    #[case(wide_comments, "a.rs", &format!("\n    // {}", "ab".repeat(93)), "a.rs:2: break the comment")]
    #[case(too_long, "a.rs", &"x\n".repeat(MAX_LINES), "")]
    #[case(too_long, "a.rs", &"x\n".repeat(MAX_LINES + 1), "a.rs: 501 lines")]
    #[case(too_long, "a.yaml", &"x\n".repeat(MAX_LINES + 1), "")]
    fn files_are_judged(
        #[case] judge: fn(&[File]) -> Vec<String>,
        #[case] path: &str,
        #[case] text: &str,
        #[case] complaint: &str,
    ) {
        let found = judge(&[File::new(path, text)]);
        assert_eq!(found.len(), usize::from(!complaint.is_empty()), "{found:?}");
        assert!(found.concat().starts_with(complaint), "{found:?}");
    }
}
