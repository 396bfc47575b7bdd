// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Extracts the commands from a documentation page: indented lines that begin with a known program.

use std::fmt;

use anyhow::Result;

use crate::{cargo, fs};

/// The documentation pages whose commands `cargo xtask docs` runs.
pub(super) const PAGES: [&str; 5] = [
    "docs/install.md",
    "docs/migrate.md",
    "docs/upgrade.md",
    "docs/tasks.md",
    "docs/kubectl.md",
];

/// The programs whose commands are extracted.
const PROGRAMS: &str = "kubectl helm curl cargo ctr k3s docker kube-proxy portolan";

/// A command on a documentation page.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Command {
    pub(super) page: &'static str,
    /// The heading above the command, without the heading's number.
    pub(super) section: String,
    /// The command without the comment behind it.
    pub(super) line: String,
    /// Whether the reader is to run the command in a shell on a node: its comment says so, it calls
    /// 127.0.0.1, or its program is `portolan`.
    pub(super) on_node: bool,
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} \"{}\": {}", self.page, self.section, self.line)
    }
}

/// Returns all commands of all documentation pages.
pub(super) fn all() -> Result<Vec<Command>> {
    let mut found = Vec::new();
    for page in PAGES {
        found.extend(commands(
            page,
            &fs::read_to_string(cargo::root().join(page))?,
        ));
    }
    Ok(found)
}

fn commands(page: &'static str, text: &str) -> Vec<Command> {
    let mut section = String::new();
    let mut found = Vec::new();
    for line in text.lines() {
        if let Some(heading) = line.strip_prefix('#') {
            let heading = heading.trim_start_matches('#').trim();
            let number_end = heading.trim_start_matches(|c: char| c.is_ascii_digit());
            section = number_end.strip_prefix(". ").unwrap_or(heading).to_owned();
        }
        let Some(indented) = line.strip_prefix("    ") else {
            continue;
        };
        let (command, comment) = indented.split_once(" # ").unwrap_or((indented, ""));
        let command = command.trim();
        let program = command.split_whitespace().next().unwrap_or_default();
        if PROGRAMS.split(' ').any(|name| name == program) {
            found.push(Command {
                page,
                section: section.clone(),
                line: command.to_owned(),
                on_node: comment.contains("on the node")
                    || command.contains("127.0.0.1")
                    || program == "portolan",
            });
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_found_below_their_section() {
        let text = "# Page\n\n## 2. See\n\nText.\n\n    kubectl get pods   # all\n    rate(x[5m]) > 0\n\n1. Step\n\n       curl -s 127.0.0.1:1/x\n    portolan check\n";
        let found = commands("docs/tasks.md", text);
        let found = found
            .iter()
            .map(|command| (command.to_string(), command.on_node));
        let expected = [
            ("docs/tasks.md \"See\": kubectl get pods", false),
            ("docs/tasks.md \"See\": curl -s 127.0.0.1:1/x", true),
            ("docs/tasks.md \"See\": portolan check", true),
        ];
        let expected = expected.map(|(command, on_node)| (command.to_owned(), on_node));
        assert_eq!(found.collect::<Vec<_>>(), expected);
    }
}
