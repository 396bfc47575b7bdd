// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Findings of `portolan check` and `portolan explain`: how they are printed, and the exit status
//! of a check that follows from them.

use std::io;

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
    #[serde(skip_serializing_if = "str::is_empty")]
    pub(crate) page: &'static str,
}

impl Finding {
    pub(crate) fn new(
        level: Level,
        about: impl Into<String>,
        found: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self {
            level,
            about: about.into(),
            found: found.into(),
            remedy: remedy.into(),
            page: "",
        }
    }
    pub(crate) fn note(about: impl Into<String>, found: impl Into<String>) -> Self {
        Self::new(Level::Note, about, found, "")
    }
    pub(crate) fn differs(
        about: impl Into<String>,
        found: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self::new(Level::Differs, about, found, remedy)
    }
    pub(crate) fn in_the_way(
        about: impl Into<String>,
        found: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self::new(Level::InTheWay, about, found, remedy)
    }
    /// Returns the finding with the page that explains it.
    pub(crate) fn explained_by(self, page: &'static str) -> Self {
        Self { page, ..self }
    }

    /// Returns a finding that something of the node could not be read.
    pub(crate) fn unread(what: &str, error: &io::Error) -> Self {
        let found = format!("could not be read: {}", chain(error));
        let remedy = match error.kind() {
            io::ErrorKind::PermissionDenied => {
                "it needs CAP_SYS_ADMIN: run it by `kubectl portolan --debug`, or as root on the node"
            }
            _ => "run this command as root in the node's own network namespace",
        };
        Self::differs(what, found, remedy)
    }

    /// Returns the finding as one line, with further ones for the remedy and the page if it has
    /// them; a note's page is left out.
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
    /// Adds findings, each only once: the agent's warnings may report the same fault as the command
    /// itself.
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
    use super::*;

    #[test]
    fn the_worst_finding_comes_first_and_sets_the_exit_status() {
        let mut report = Report::default();
        assert_eq!(report.code(), 0);
        report.extend([Finding::note("kernel", "6.18")]);
        report.extend([Finding::note("kernel", "6.18")]);
        assert_eq!((report.code(), report.findings.len()), (0, 1));
        assert!(report.text().ends_with("and nothing differs"));
        report.extend([Finding::differs("mode", "ipvs", "restart the node")]);
        assert_eq!(report.code(), 1);
        report.extend([Finding::in_the_way("cgroup v2", "is not there", "mount it")]);
        assert_eq!(report.code(), 3);
        let text = report.text();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0], "in the way  cgroup v2: is not there");
        assert_eq!(lines[1].trim(), "-> mount it");
        assert_eq!(lines[2], "differs     mode: ipvs");
        assert_eq!(lines[4], "note        kernel: 6.18");
        assert_eq!(lines[5], "in the way: 1; differences: 1");
    }
}
