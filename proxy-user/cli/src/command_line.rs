// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Parses the command line, and prints what a shell needs to complete it. Called by `main`.

use std::{env, ffi::OsString, process::ExitCode};

use anyhow::Context;
use clap::{CommandFactory, Parser};
use clap_complete::{Shell, generate};

use super::{Cli, frame::BAD_INPUT, terminal::print};

/// Arguments of `portolan completions`.
#[derive(clap::Args, Clone, Debug)]
pub struct CompletionArgs {
    /// The shell.
    pub shell: Shell,
}

pub(super) fn complete(args: &CompletionArgs) -> anyhow::Result<()> {
    // `generate` panics if it cannot write, so it writes to a buffer first.
    let mut script = Vec::new();
    generate(args.shell, &mut Cli::command(), "portolan", &mut script);
    print(&String::from_utf8_lossy(&script)).context("write")
}

/// Returns the parsed command line; the exit status if help or an error was printed instead.
pub fn parse() -> Result<Cli, ExitCode> {
    Cli::try_parse_from(words(env::args_os())).map_err(|error| {
        // A write error is ignored: the program that reads the output has ended.
        _ = error.print();
        u8::try_from(error.exit_code()).unwrap_or(BAD_INPUT).into()
    })
}

/// Returns the words of a command line. KUBE: underscores in a flag's name become dashes.
pub(super) fn words(line: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut flags_end = false;
    let words = line.map(|word| {
        flags_end |= word == "--";
        let is_flag = |word: &&str| word.starts_with("--") && !flags_end;
        let Some(flag) = word.to_str().filter(is_flag) else {
            return word;
        };
        let name = flag.split('=').next().unwrap_or(flag);
        format!("{}{}", name.replace('_', "-"), &flag[name.len()..]).into()
    });
    words.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{frame::BadInput, perform};

    /// Returns a command line for each of these commands (separated by spaces) with each of these
    /// arguments (separated by commas), parsed.
    fn parsed(commands: &str, arguments: &str) -> Vec<Result<Cli, clap::Error>> {
        let commands = commands.replace("LISTS", LISTS);
        let lines = commands.split(' ').flat_map(|command| {
            let arguments = arguments.split(", ");
            arguments.map(move |arguments| format!("portolan {command} {arguments}"))
        });
        let parsed = lines.map(|line| Cli::try_parse_from(line.split_whitespace()));
        parsed.collect()
    }

    const LISTS: &str = "services backends flows sockets affinity top";

    /// Commands, their arguments, and what the error names.
    const WRONG: &str = include_str!("wrong_arguments.txt");

    #[test]
    fn wrong_arguments_are_refused_and_named() {
        for [commands, arguments, expected] in control::testing::rows(WRONG) {
            for line in parsed(&commands, &arguments) {
                let error = line.expect_err("refused");
                assert_eq!(error.exit_code(), i32::from(BAD_INPUT));
                let said = error.to_string();
                assert!(said.contains(&*expected), "{said}");
            }
        }
    }

    #[test]
    fn bad_argument_values_are_refused_before_the_maps_are_read() {
        for line in parsed("LISTS", "a/b -n c, --sort-by colour, --no-headers -o json") {
            let error = perform(&line.expect("parsed").command).expect_err("refused");
            let said = error.to_string();
            assert!(error.is::<BadInput>() && !said.contains('\n'), "{said}");
        }
    }
}
