// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Checks single files: licence lines, length, no paths of a development machine.

use anyhow::Result;

use super::File;
use crate::{cargo, command, fs};

const WARN_LINES: usize = 300;
/// The most columns of a comment line.
const COMMENT_COLUMNS: usize = 100;
const MAX_LINES: usize = 500;

/// Paths that a committed file must not contain, because they exist on one machine only.
const MACHINE_PATHS: [&str; 3] = [
    concat!("/wo", "rk/"),
    concat!("/ro", "ot/"),
    concat!("/ho", "me/"),
];

/// Reads every text file that git tracks or would add.
pub(super) fn read_all() -> Result<Vec<File>> {
    let root = cargo::root();
    // git refuses another user's clone, which is usual in a container.
    let arguments = "-c safe.directory=* ls-files -z --cached --others --exclude-standard";
    let mut command = command::of("git", arguments);
    let what = "list the project's files (this needs git and a clone)";
    let names = command::output(command.current_dir(&root), what)?;
    let mut files = Vec::new();
    for path in names.split_terminator('\0') {
        let full = root.join(path);
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
        let script = file.text.starts_with("#!");
        let (line, prefix) = match (script, file.is_rust()) {
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
    longer_than(files, MAX_LINES)
        .into_iter()
        .map(|(lines, path)| format!("{path}: {lines} lines; split it, {MAX_LINES} is the most"))
        .collect()
}

/// Returns a line for each comment line of a Rust file with more than `COMMENT_COLUMNS` columns.
pub(super) fn wide_comments(files: &[File]) -> Vec<String> {
    lines_of(files.iter().filter(|file| file.is_rust()), |line| {
        let is_wide = line.chars().count() > COMMENT_COLUMNS;
        (is_wide && line.trim_start().starts_with("//"))
            .then(|| format!("break the comment at {COMMENT_COLUMNS} columns"))
    })
}

/// Returns a warning about Rust files with more than `WARN_LINES` lines, if there are any.
pub(super) fn long(files: &[File]) -> Option<String> {
    let found = longer_than(files, WARN_LINES);
    let longest = found
        .iter()
        .take(3)
        .map(|(lines, path)| format!("{path} ({lines})"));
    let longest = longest.collect::<Vec<_>>().join(", ");
    let count = found.len();
    let warning =
        format!("{count} files have more than {WARN_LINES} lines, the longest: {longest}");
    (count > 0).then_some(warning)
}

/// Returns lines and path of each Rust file with more than `limit` lines, the longest first.
fn longer_than(files: &[File], limit: usize) -> Vec<(usize, &str)> {
    let rust = files.iter().filter(|file| file.is_rust());
    let lengths = rust.map(|file| (file.text.lines().count(), file.path.as_str()));
    let mut found: Vec<_> = lengths.filter(|(lines, _)| *lines > limit).collect();
    found.sort_unstable_by(|a, b| b.cmp(a));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rust_file_and_a_script_say_their_licence_at_the_top() {
        let spdx = "SPDX-License-Identifier: Apache-2.0 OR MIT";
        let good = [
            File::new("a.rs", &format!("// {spdx}\n")),
            File::new("run", &format!("#!/bin/sh\n# {spdx}\n")),
            File::new("notes.md", "nothing"),
        ];
        assert_eq!(licence_lines(&good), [""; 0]);
        let bad = [
            File::new("a.rs", "//! no\n"),
            File::new("run", "#!/bin/sh\ntrue\n"),
        ];
        assert_eq!(licence_lines(&bad).len(), 2);
    }

    #[test]
    fn a_machines_path_is_found_with_its_line() {
        let text = format!("fine\nsee {}x", MACHINE_PATHS[0]);
        let found = machine_paths(&[File::new("README.md", &text)]);
        assert!(found[0].starts_with("README.md:2: "), "{found:?}");
        let fine = File::new("README.md", "in network/ and at the root/ of it");
        assert_eq!(machine_paths(&[fine]), [""; 0]);
    }

    #[test]
    fn a_comment_is_refused_by_its_columns_and_not_by_its_bytes() {
        let line = |filling: &str| format!("fn f() {{}}\n    // {}\n", filling.repeat(93));
        assert_eq!(wide_comments(&[File::new("a.rs", &line("é"))]), [""; 0]);
        let found = wide_comments(&[
            File::new("a.rs", &line("é")),
            File::new("b.rs", &line("ab")),
        ]);
        assert_eq!(found, ["b.rs:2: break the comment at 100 columns"]);
    }

    #[test]
    fn long_files_give_a_warning_and_longer_ones_an_error() {
        let lines = |count: usize| "x\n".repeat(count);
        let files = [
            File::new("short.rs", &lines(WARN_LINES)),
            File::new("long.rs", &lines(WARN_LINES + 1)),
            File::new("planner/tests.rs", &lines(MAX_LINES + 1)),
            File::new("table.yaml", &lines(9999)),
        ];
        let refused = too_long(&files);
        assert_eq!(refused.len(), 1);
        assert!(refused[0].starts_with("planner/tests.rs: 501 lines"));
        let warning = long(&files).expect("two files are long");
        assert!(warning.starts_with("2 files"), "{warning}");
        assert_eq!(long(&files[..1]), None);
    }
}
