// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `portolan --help`: the commands in groups by purpose, and examples. Used by `one_line` and for
//! the manual pages.

use std::fmt::Write;

use clap::{Command, CommandFactory};

use super::Cli;

/// The headings of --help and the commands below each; every command that is not hidden is listed
/// once.
const GROUPS: [(&str, &[&str]); 5] = [
    ("What is served", &["services", "backends", "affinity"]),
    (
        "What happens",
        &["top", "flows", "sockets", "trace", "counters"],
    ),
    (
        "What is wrong",
        &[
            "explain", "test", "status", "warnings", "maps", "config", "dump",
        ],
    ),
    ("Run it", &["run", "check"]),
    ("Go away", &["cleanup"]),
];
const REST: (&str, &[&str]) = ("Other", &["version", "completions", "help"]);

const EXAMPLES: &str = "\
Examples:
  portolan status                            is all well on this node?
  portolan explain --from 10.40.1.9 --to shop/cart   why is there no answer?
  portolan services shop/cart                what does this service have?
  portolan top                               who is busy now?

`portolan COMMAND --help` has every argument, and examples.";

/// Returns clap's definition of the command line, whose help shows the commands in groups.
pub(super) fn command() -> Command {
    let command = Cli::command();
    let template = format!(
        "{{about}}\n\n{{usage-heading}} {{usage}}\n{}\nOptions:\n{{options}}\n\n{EXAMPLES}\n",
        groups(&command)
    );
    command.help_template(template)
}

fn groups(command: &Command) -> String {
    let mut text = String::new();
    for (heading, names) in GROUPS.into_iter().chain([REST]) {
        // Writing to a string does not fail.
        _ = write!(text, "\n{heading}:\n");
        for name in names {
            let about = command.find_subcommand(name).and_then(Command::get_about);
            let about = about.map_or_else(
                || "Print this, or the help of a command".to_owned(),
                ToString::to_string,
            );
            _ = writeln!(text, "  {name:<13}{}", first_sentence(&about));
        }
    }
    text
}

/// Returns the part of a command's description that fits on one line. The command's own help has
/// all of it.
fn first_sentence(about: &str) -> &str {
    const LONG: usize = 90;
    let end = about.find(". ").unwrap_or(about.len());
    let sentence = about[..end].trim_end_matches('.');
    match sentence.find(": ") {
        Some(end) if sentence.len() > LONG => &sentence[..end],
        _ => sentence,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_command_for_people_is_in_one_group() {
        let mut command = Cli::command();
        command.build();
        // What only the manifests call is not shown.
        let shown = command.get_subcommands().filter(|one| !one.is_hide_set());
        let all: BTreeSet<_> = shown.map(Command::get_name).collect();
        let groups = GROUPS.into_iter().chain([REST]);
        let grouped: Vec<_> = groups.flat_map(|(_, names)| names.to_vec()).collect();
        let once: BTreeSet<_> = grouped.iter().copied().collect();
        assert_eq!(grouped.len(), once.len());
        assert_eq!(once, all);
    }

    #[test]
    fn the_help_has_groups_and_examples_in_lines_that_fit() {
        let help = command().render_help().to_string();
        for line in help.lines() {
            assert!(line.chars().count() <= 130, "{line}");
        }
        assert!(help.contains("What is served:\n  services"), "{help}");
        assert!(help.contains("Usage: portolan <COMMAND>"), "{help}");
        assert!(help.contains("--version") && help.contains("Examples:"));
    }
}
