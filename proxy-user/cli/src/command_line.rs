// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Parses the command line. Called by `main`.

use std::{env, ffi::OsString, process::ExitCode};

use clap::{
    Parser,
    error::{ContextKind, ContextValue},
};

use super::{Cli, frame::BAD_INPUT};

/// Commands and flags that an earlier version had, and what to use instead. FILTER stands for any
/// word that is no flag.
const GONE: &str = "\
run --shadow: `portolan run --service-proxy-name NAME` serves one Service beside kube-proxy: docs/migrate.md
shadow: `portolan run --service-proxy-name NAME` serves one Service beside kube-proxy: docs/migrate.md
check --drift: the agent repairs what differs: `portolan status` counts its repairs
check --fix: `portolan init` sets the node's parameters, and `check` removes what killed checks have left
explain --probe: `--follow` sends one real packet and names the station that lost it: docs/explain.md
explain --no-dry-run: there is no dry run any more: leave the flag out
services --bpftool: docs/maps.md says how to read the maps by bpftool
top --once: `portolan top` shows it once, and `--watch` again and again
trace FILTER: --service, --client, --port and --verdict say what to show: docs/commands.md#trace
";

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

/// Returns the parsed command line. If help, the version or an error was printed instead, returns
/// the exit status.
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
        let Some(flag) = word
            .to_str()
            .filter(|flag| flag.starts_with("--") && !flags_end)
        else {
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
    #[case("shadow report", "--service-proxy-name")]
    #[case("run -v 4 --shadow", "--service-proxy-name")]
    #[case("check --drift", "portolan status")]
    #[case("explain --from node --to shop/cart --probe", "--follow")]
    #[case("top --once --limit 3", "--watch")]
    #[case("trace --limit 3 host 10.0.0.1 and port 80", "--client")]
    #[case("trace verdict drop or verdict reject", "--verdict")]
    fn what_an_earlier_version_had_names_what_to_use_now(#[case] line: &str, #[case] now: &str) {
        let gone = gone_of(line).expect("it had it");
        assert!(gone.contains("is gone") && gone.contains(now), "{gone}");
    }

    #[rstest]
    #[case("run --config shadow")]
    #[case("trace --service shadow --nonsense")]
    #[case("shade")]
    fn what_no_version_had_is_not_gone(#[case] line: &str) {
        assert_eq!(gone_of(line), None);
    }

    fn gone_of(line: &str) -> Option<String> {
        let line = format!("portolan {line}");
        let words = words(line.split(' ').map(OsString::from));
        gone(&words, &Cli::try_parse_from(&words).err()?)
    }

    fn said_of(error: clap::Error) -> String {
        assert_eq!(error.exit_code(), i32::from(BAD_INPUT));
        error.to_string()
    }

    /// Returns a command line for each of these commands (separated by spaces) with each of these
    /// arguments (separated by commas), parsed.
    fn parsed(commands: &str, arguments: &str) -> Vec<Result<Cli, clap::Error>> {
        let lines = commands.split(' ').flat_map(|command| {
            let arguments = arguments.split(", ");
            arguments.map(move |arguments| format!("portolan {command} {arguments}"))
        });
        let parsed = lines.map(|line| Cli::try_parse_from(line.split_whitespace()));
        parsed.collect()
    }

    const LISTS: &str = "services backends flows sockets affinity top";
    const LISTS_AND_OVERVIEWS: &str =
        "services backends flows sockets affinity top status counters maps warnings config";

    #[rstest]
    #[case(LISTS_AND_OVERVIEWS, "-o xml, --interval soon, --limit -1")]
    #[case::without_an_output_that_is_repeated(LISTS_AND_OVERVIEWS, "--interval 3")]
    #[case(LISTS, "a/b/c, --address 300.1.1.1, --port http, --protocol quic")]
    #[case(LISTS, "--count --limit 3, --count --reverse")]
    #[case(LISTS, "--count --sort-by service")]
    #[case("cleanup", "--dry-run --force")]
    #[case("completions", "tcsh")]
    #[case("config", "--config")]
    #[case("dump", "")]
    #[case("flows", "--state open")]
    #[case("servces", "")]
    #[case("status", "--metrics-bind-address here, --limit 3")]
    #[case(
        "top",
        "--count --limit 3, --backends --reasons, --programs --reasons, --programs cart, --interval 3"
    )]
    fn wrong_arguments_are_refused(#[case] commands: &str, #[case] arguments: &str) {
        for line in parsed(commands, arguments) {
            said_of(line.expect_err("refused"));
        }
    }

    #[test]
    fn bad_argument_values_are_refused_before_the_maps_are_read() {
        for line in parsed(LISTS, "a/b -n c, --sort-by colour, --no-headers -o json") {
            let error = perform(&line.expect("parsed").command).expect_err("refused");
            let said = error.to_string();
            assert!(error.is::<BadInput>() && !said.contains('\n'), "{said}");
        }
    }

    /// Arguments, and what the error names.
    const NAMED: &str = "
services --nonsense | --nonsense
services -o xml | 'xml'
services -o jsonpath={.items[ | is no JSONPath
services a/b/c | use NAME, NAMESPACE/NAME
services -n a -A | cannot be used with
backends --address 10.0.0.0/33 | use an IP address
backends --port 70000 | 70000
flows --state open | unanswered, answered
flows --protocol quic | tcp, udp, sctp
sockets --interval 0 | seconds from 0.1
affinity --limit -1 | -1
afinity | affinity
cleanup --force --drain | cannot be used with
trace --client hots | use an IP address
trace --client pod/web/a/b | pod/NAMESPACE/NAME
trace --port 0 | --port
trace --service A/B | use NAME, NAMESPACE/NAME
trace --verdict lost | forward, reject, drop, untouched
trace --verdict drop --all | cannot be used with
trace --drops --verdict drop | cannot be used with
trace --limit 0 | --limit
";

    #[test]
    fn bad_input_is_named() {
        for [arguments, expected] in control::testing::rows(NAMED) {
            let line = format!("portolan {arguments}");
            let refused = Cli::try_parse_from(line.split(' ')).expect_err("refused");
            let said = said_of(refused);
            assert!(said.contains(&*expected), "{said}");
        }
    }
}
