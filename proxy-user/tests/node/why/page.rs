// SPDX-License-Identifier: Apache-2.0 OR MIT
//! docs/why.md, read: a section for each fault with its command and what that prints.

const PAGE: &str = include_str!("../../../../docs/why.md");

/// Stands for lines that the page leaves out, or for a part of a line.
const LEFT_OUT: &str = "...";

/// One fault.
pub(super) struct Section {
    pub(super) title: &'static str,
    /// The words behind `portolan`.
    pub(super) command: Vec<&'static str>,
    /// The lines that it prints, but those that are left out.
    pub(super) output: Vec<&'static str>,
}

pub(super) fn sections() -> Vec<Section> {
    PAGE.split("\n## ").skip(1).map(section).collect()
}

fn section(text: &'static str) -> Section {
    let (title, rest) = text.split_once('\n').expect("a title");
    let mut shown = rest.lines().filter_map(|line| line.strip_prefix("    "));
    let command = shown.next().expect("a command");
    let command = command.strip_prefix("portolan ");
    let words = command.unwrap_or_else(|| panic!("{title}: a command of portolan"));
    Section {
        title,
        command: words.split(' ').collect(),
        output: shown
            .filter(|line| line.trim() != LEFT_OUT)
            .map(str::trim_end)
            .collect(),
    }
}

/// Whether the page shows a printed line so.
pub(super) fn is_shown_as(line: &str, shown: &str) -> bool {
    let mut rest = line.trim_end();
    let mut parts = shown.split(LEFT_OUT).peekable();
    let mut is_first = true;
    while let Some(part) = parts.next() {
        let is_last = parts.peek().is_none();
        let at = match (is_first, is_last) {
            (true, _) => rest.starts_with(part).then_some(0),
            (false, true) => rest.ends_with(part).then(|| rest.len() - part.len()),
            (false, false) => rest.find(part),
        };
        let Some(at) = at else { return false };
        rest = &rest[at + part.len()..];
        is_first = false;
    }
    rest.is_empty()
}
