// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads docs/why.md: each section is a fault with a command and its output.

const PAGE: &str = include_str!("../../../../docs/why.md");

/// Marks lines, or a part of a line, that the page leaves out.
const LEFT_OUT: &str = "...";

/// The section of one fault.
pub(super) struct Section {
    pub(super) title: &'static str,
    /// The words after `portolan`.
    pub(super) command: Vec<&'static str>,
    /// The printed lines, without those left out.
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

/// Whether the page shows a printed line as `shown`.
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
