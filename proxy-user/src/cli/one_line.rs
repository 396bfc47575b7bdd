// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Parses the command line. What is wrong with it is said in one line, as every other error: scripts log it whole. Called by `main`.

use std::process::ExitCode;

use clap::{FromArgMatches, error::ErrorKind};

use super::{BAD_INPUT, Cli, overview};

/// The command line; or, once help, version or an error have been printed, the exit status.
pub fn parse() -> Result<Cli, ExitCode> {
    let matches = overview::command().try_get_matches();
    let parsed = matches.and_then(|matches| Cli::from_arg_matches(&matches));
    parsed.map_err(|error| {
        let is_wanted = matches!(
            error.kind(),
            ErrorKind::DisplayHelp
                | ErrorKind::DisplayVersion
                | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
        );
        if is_wanted {
            // To a reader that has gone there is nothing to say.
            _ = error.print();
            return u8::try_from(error.exit_code()).unwrap_or(BAD_INPUT).into();
        }
        eprintln!("{}", line(&error.render().to_string()));
        BAD_INPUT.into()
    })
}

/// clap's text, which has the error, hints and the usage in lines of their own, as one line without the usage.
fn line(text: &str) -> String {
    let paragraphs = text.split("\n\n").map(str::trim).filter(|paragraph| {
        !paragraph.starts_with("Usage:") && !paragraph.starts_with("For more information")
    });
    let words = paragraphs.map(|paragraph| {
        let lines = paragraph
            .lines()
            .map(str::trim)
            .filter(|line| !line.is_empty());
        lines.collect::<Vec<_>>().join(" ")
    });
    let words: Vec<_> = words.filter(|words| !words.is_empty()).collect();
    let said = words.join("; ");
    format!(
        "portolan: {}",
        said.strip_prefix("error: ").unwrap_or(&said)
    )
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    fn said(arguments: &[&str]) -> String {
        let error = Cli::try_parse_from([&["portolan"], arguments].concat());
        line(&error.expect_err("refused").render().to_string())
    }

    #[test]
    fn bad_input_is_told_in_one_line_that_names_it() {
        for (arguments, expected) in [
            (&["services", "-o", "xml"][..], "'xml'"),
            (&["services", "-o", "jsonpath={.items["], "is no JSONPath"),
            (&["services", "a/b/c"], "use NAME, NAMESPACE/NAME"),
            (&["services", "-n", "a", "-A"], "cannot be used with"),
            (
                &["backends", "--address", "10.0.0.0/33"],
                "use an IP address",
            ),
            (&["backends", "--port", "70000"], "70000"),
            (&["flows", "--state", "open"], "unanswered, answered"),
            (&["flows", "--protocol", "quic"], "tcp, udp, sctp"),
            (&["sockets", "--interval", "0"], "seconds from 0.1"),
            (&["affinity", "--limit", "-1"], "-1"),
            (&["afinity"], "affinity"),
            (&["cleanup", "--force", "--drain"], "cannot be used with"),
        ] {
            let said = said(arguments);
            assert!(said.starts_with("portolan: "), "{said}");
            assert!(said.contains(expected), "{said}");
            assert!(!said.contains('\n') && !said.contains("Usage"), "{said}");
        }
    }
}
