// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The `portolan` commands in docs/runbooks.md.

use clap::Parser;
use cli::Cli;

const PAGE: &str = include_str!("../../../docs/runbooks.md");

/// Checks that the commands exist; the addresses and names in them are examples.
#[test]
fn every_portolan_command_in_the_runbooks_parses() {
    let mut commands = 0;
    let mut section = "";
    for line in PAGE.lines() {
        section = line.strip_prefix("## ").unwrap_or(section);
        let Some(line) = line.strip_prefix("    portolan ") else {
            continue;
        };
        let words = line.replace("ADDRESS", "192.0.2.1");
        let words = ["portolan"].into_iter().chain(words.split_whitespace());
        if let Err(error) = Cli::try_parse_from(words) {
            panic!("{section}: portolan {line}: {error}");
        }
        commands += 1;
    }
    assert!(commands > 20, "{commands}");
}
