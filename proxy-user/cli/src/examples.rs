// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The example commands that `--help` shows below each command. They are in `examples.txt`.

use clap::Command;

/// Adds its examples to the help of a command.
pub(super) fn add(command: Command) -> Command {
    let examples = of(command.get_name());
    command.after_help(examples)
}

/// Returns the examples of a command.
pub(super) fn of(command: &str) -> &'static str {
    let mut parts = include_str!("examples.txt").split("\n# ");
    let own = parts.find_map(|part| part.strip_prefix(command)?.strip_prefix('\n'));
    own.unwrap_or_default().trim_end()
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use crate::Cli;

    /// Returns the example commands in the help text of a command, without their explanations.
    fn examples(help: &str) -> Vec<String> {
        let lines = help.lines();
        let lines = lines.filter_map(|line| line.strip_prefix("  portolan "));
        let commands = lines.filter_map(|line| line.split("  ").next()?.split(" > ").next());
        commands.map(|command| command.trim().to_owned()).collect()
    }

    #[test]
    fn every_command_has_examples_that_it_parses() {
        let mut command = Cli::command();
        command.build();
        let all = command.get_subcommands();
        for one in all.filter(|one| one.get_name() != "help") {
            let help = one.get_after_help().expect("examples").to_string();
            let examples = examples(&help);
            assert!(!examples.is_empty(), "{} has none", one.get_name());
            for example in examples {
                let bare = example.replace('\'', "");
                let words = std::iter::once("portolan").chain(bare.split_whitespace());
                if let Err(error) = Cli::try_parse_from(words) {
                    panic!("{example}: {error}");
                }
            }
        }
    }

    #[test]
    fn docs_commands_md_has_every_command() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/commands.md");
        let page = std::fs::read_to_string(page).expect("the page");
        let headings = page.lines().filter_map(|line| line.strip_prefix("## "));
        let headings: Vec<_> = headings.flat_map(|line| line.split(", ")).collect();
        for command in Cli::command().get_subcommands() {
            let name = command.get_name();
            assert!(headings.contains(&name), "{name} is not on the page");
        }
    }
}
