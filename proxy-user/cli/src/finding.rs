// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Findings of `portolan check` and `portolan explain`, and a check's exit status by them.

use std::{array, fmt::Display, io};

use control::causes::chain;
use serde::Serialize;

/// How severe a finding is; the number of the worst one is the exit status of a check.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Level {
    Note = 0,
    /// Portolan works, but something differs from kube-proxy or from what it should be.
    Differs = 1,
    /// Portolan would serve no services, or not all.
    InTheWay = 3,
}

impl Level {
    fn word(self) -> &'static str {
        match self {
            Self::Note => "note",
            Self::Differs => "differs",
            Self::InTheWay => "in the way",
        }
    }
}

/// Returns the lines of this code in `findings.txt`, with `words` in the places of `{0}` and so on;
/// empty texts for lines that it does not have.
pub(crate) fn texts<const N: usize>(code: &str, words: &[&dyn Display]) -> [String; N] {
    let mut blocks = include_str!("findings.txt").split("\n\n").map(str::lines);
    let block = blocks.find_map(|mut lines| (lines.next()? == code).then_some(lines));
    debug_assert!(block.is_some(), "findings.txt has no {code}");
    let mut lines = block.into_iter().flatten().map(str::trim);
    array::from_fn(|_| match lines.next() {
        None | Some("-") => String::new(),
        Some(line) => filled(line, words),
    })
}

fn filled(line: &str, words: &[&dyn Display]) -> String {
    let mut parts = line.split('{');
    let mut filled = parts.next().unwrap_or_default().to_owned();
    for (number, rest) in parts.filter_map(|part| part.split_once('}')) {
        let word = number.parse().ok().and_then(|at: usize| words.get(at));
        debug_assert!(word.is_some(), "a word is missing: {line}");
        filled.extend(word.map(ToString::to_string));
        filled += rest;
    }
    filled
}

/// One thing that a check has found, with what to do about it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Finding {
    pub(crate) level: Level,
    /// The object that the finding is about, such as a service or an interface.
    pub(crate) about: String,
    pub(crate) found: String,
    /// What to do about it; empty if there is nothing to do, or if `found` says it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) remedy: String,
    /// The documentation page that explains it; empty if there is none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) page: String,
}

impl Finding {
    /// Returns the finding of this code in `findings.txt`.
    pub(crate) fn of(code: &str, words: &[&dyn Display]) -> Self {
        let [level, about, found, remedy, page] = texts(code, words);
        let mut levels = [Level::Note, Level::Differs].into_iter();
        let level = levels.find(|one| one.word() == level);
        Self {
            level: level.unwrap_or(Level::InTheWay),
            about,
            found,
            remedy,
            page,
        }
    }

    /// Returns a finding in the words of somebody else, without a remedy.
    pub(crate) fn new(level: Level, about: impl Into<String>, found: impl Into<String>) -> Self {
        Self {
            level,
            about: about.into(),
            found: found.into(),
            remedy: String::new(),
            page: String::new(),
        }
    }

    /// Returns a finding that something of the node could not be read.
    pub(crate) fn unread(what: &str, error: &io::Error) -> Self {
        let code = match error.kind() {
            io::ErrorKind::PermissionDenied => "unread-denied",
            _ => "unread",
        };
        Self::of(code, &[&what, &chain(error)])
    }

    /// Returns the finding as a line, with one for its remedy and, unless it is a note, its page.
    pub(crate) fn line(&self) -> String {
        let mut line = format!("{:<11} {}: {}", self.level.word(), self.about, self.found);
        if !self.remedy.is_empty() {
            line += &format!("\n{:<11} -> {}", "", self.remedy);
        }
        if !self.page.is_empty() && self.level != Level::Note {
            line += &format!("\n{:<11} -> see {}", "", self.page);
        }
        line
    }
}

/// All findings of one check.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub(crate) struct Report {
    findings: Vec<Finding>,
}

impl Report {
    /// Adds findings, each only once: the agent's warnings may report the same fault.
    pub(crate) fn extend(&mut self, findings: impl IntoIterator<Item = Finding>) {
        for finding in findings {
            if !self.findings.contains(&finding) {
                self.findings.push(finding);
            }
        }
    }

    /// Returns the exit status.
    pub(crate) fn code(&self) -> u8 {
        let levels = self.findings.iter().map(|finding| finding.level);
        levels.max().unwrap_or(Level::Note) as u8
    }

    /// Returns the findings as text, the worst first.
    pub(crate) fn text(&self) -> String {
        let mut ordered: Vec<_> = self.findings.iter().collect();
        ordered.sort_by_key(|finding| std::cmp::Reverse(finding.level));
        let mut lines: Vec<_> = ordered.into_iter().map(Finding::line).collect();
        let count = |level| {
            let of_level = self.findings.iter().filter(|one| one.level == level);
            of_level.count()
        };
        lines.push(match (count(Level::InTheWay), count(Level::Differs)) {
            (0, 0) => "nothing is in the way, and nothing differs".to_owned(),
            (0, differ) => format!("nothing is in the way; differences: {differ}"),
            (block, differ) => format!("in the way: {block}; differences: {differ}"),
        });
        lines.join("\n")
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs, path::Path};

    use super::*;

    #[test]
    fn the_worst_finding_comes_first_and_sets_the_exit_status() {
        let mut report = Report::default();
        assert_eq!(report.code(), 0);
        report.extend([Finding::of("agent-runs", &[])]);
        report.extend([Finding::of("agent-runs", &[])]);
        assert_eq!((report.code(), report.findings.len()), (0, 1));
        assert!(report.text().ends_with("and nothing differs"));
        report.extend([Finding::of("mode-ipvs", &[])]);
        assert_eq!(report.code(), 1);
        report.extend([Finding::of("cgroup-outside", &[&"/a"])]);
        assert_eq!(report.code(), 3);
        let text = report.text();
        let lines: Vec<_> = text.lines().collect();
        let outside = "in the way  cgroup v2: /a is not in a cgroup2 hierarchy";
        assert_eq!(lines[0], outside);
        assert_eq!(lines[1].trim(), "-> name one with --cgroup-root");
        assert!(lines[2].starts_with("differs     mode ipvs: means the same"));
        assert_eq!(lines[4], "note        portolan: an agent runs on this node");
        assert_eq!(lines[5], "in the way: 1; differences: 1");
    }

    /// Returns the sources in a folder, one behind the other.
    fn sources(folder: &Path) -> String {
        let entries = fs::read_dir(folder).expect("a folder").flatten();
        let texts = entries.map(|entry| match entry.path() {
            path if path.is_dir() => sources(&path),
            path => fs::read_to_string(path).expect("a source"),
        });
        texts.collect()
    }

    #[test]
    fn every_code_has_its_text_and_every_page_exists() {
        let package = Path::new(env!("CARGO_MANIFEST_DIR"));
        let text = sources(&package.join("src"));
        let blocks = include_str!("findings.txt").split("\n\n").skip(1);
        let codes: Vec<_> = blocks.filter_map(|block| block.lines().next()).collect();
        for code in &codes {
            assert!(text.contains(&format!("\"{code}\"")), "{code} is not used");
        }
        let calls = ["Finding", "Reason"].map(|kind| format!("{kind}::of(\""));
        for part in calls.iter().flat_map(|call| text.split(call).skip(1)) {
            let code = part.split('"').next().expect("a code");
            assert!(codes.contains(&code), "{code} is not in the table");
        }
        let ends = |c: char| !(c.is_alphanumeric() || "/.#-_".contains(c));
        let words = text.split(ends).filter(|word| word.starts_with("docs/"));
        let pages: BTreeSet<_> = words.filter_map(|word| word.split_once(".md#")).collect();
        assert!(pages.len() > 8, "{pages:?}");
        for (page, anchor) in pages {
            let page = package.join(format!("../../{page}.md"));
            let text = fs::read_to_string(&page).expect("a page");
            let is_set = text.contains(&format!("<a id=\"{anchor}\"></a>"));
            // As GitHub makes an anchor from a heading.
            let mut headings = text.lines().filter(|line| line.starts_with('#'));
            let is_heading = headings.any(|line| {
                let line = line.trim_start_matches('#').trim().to_lowercase();
                let line = line.replace(' ', "-");
                line.replace(|c: char| !(c.is_alphanumeric() || "-_".contains(c)), "") == anchor
            });
            assert!(is_set || is_heading, "{page:?} {anchor}");
        }
    }
}
