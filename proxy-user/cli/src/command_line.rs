// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Parses the command line, and prints what a shell needs to complete it. Called by `main`.

use std::{env, ffi::OsString, process::ExitCode};

use anyhow::Context;
use clap::{
    CommandFactory, Parser,
    error::{ContextKind, ContextValue},
};
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

/// What an earlier version had, and what to use instead. FILTER: any word that is no flag.
const GONE: &str = include_str!("gone.txt");

/// Returns what to use instead of what clap refuses in these words, if an earlier version had it.
fn gone(words: &[OsString], error: &clap::Error) -> Option<String> {
    let kinds = [ContextKind::InvalidArg, ContextKind::InvalidSubcommand];
    let refused = kinds.into_iter().find_map(|kind| match error.get(kind) {
        Some(ContextValue::String(word)) => Some(word.as_str()),
        _ => None,
    })?;
    let is_refused =
        |name: &str| name == refused || (name == "FILTER" && !refused.starts_with('-'));
    let mut lines = GONE.lines().filter_map(|line| line.split_once(": "));
    let (name, instead) = lines.find(|(name, _)| match name.split_once(' ') {
        Some((command, word)) => words.get(1).is_some_and(|one| one == command) && is_refused(word),
        None => *name == refused,
    })?;
    Some(format!("{name} is gone; {instead}"))
}

/// Returns the parsed command line; the exit status if help or an error was printed instead.
pub fn parse() -> Result<Cli, ExitCode> {
    let words = words(env::args_os());
    Cli::try_parse_from(&words).map_err(|error| {
        if let Some(gone) = gone(&words, &error) {
            eprintln!("portolan: {gone}");
            return BAD_INPUT.into();
        }
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
    use rstest::rstest;

    use super::*;
    use crate::{frame::BadInput, perform};

    #[rstest]
    #[case("shadow report", Some("--service-proxy-name"))]
    #[case("run -v 4 --shadow", Some("--service-proxy-name"))]
    #[case("check --drift", Some("portolan status"))]
    #[case("explain --from node --to shop/cart --probe", Some("--follow"))]
    #[case("top --once --limit 3", Some("--watch"))]
    #[case("trace --limit 3 host 10.0.0.1 and port 80", Some("--client"))]
    #[case("trace verdict drop or verdict reject", Some("--verdict"))]
    #[case("run --config shadow", None)]
    #[case("trace --service shadow --nonsense", None)]
    #[case("shade", None)]
    fn what_an_earlier_version_had_names_what_to_use_now(
        #[case] line: &str,
        #[case] now: Option<&str>,
    ) {
        let line = format!("portolan {line}");
        let words = words(line.split(' ').map(OsString::from));
        let error = Cli::try_parse_from(&words).err();
        let gone = error.and_then(|error| gone(&words, &error));
        let is_named = |now| gone.as_ref().is_some_and(|gone| gone.contains(now));
        assert_eq!(gone.is_some(), now.is_some(), "{line}");
        assert!(now.is_none_or(is_named), "{gone:?}");
    }

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
