// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The `portolan` commands in docs/runbooks.

use std::fs;

use clap::Parser;
use cli::Cli;

/// Checks that the commands exist; the addresses and names in them are examples.
#[test]
fn every_portolan_command_in_the_runbooks_parses() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/runbooks");
    let mut commands = 0;
    for entry in fs::read_dir(folder).expect("the pages") {
        let path = entry.expect("a page").path();
        let text = fs::read_to_string(&path).expect("a page");
        let lines = text.lines();
        for line in lines.filter_map(|line| line.strip_prefix("    portolan ")) {
            let words = line.replace("ADDRESS", "192.0.2.1");
            let words = ["portolan"].into_iter().chain(words.split_whitespace());
            if let Err(error) = Cli::try_parse_from(words) {
                panic!("{}: portolan {line}: {error}", path.display());
            }
            commands += 1;
        }
    }
    assert!(commands > 20, "{commands}");
}
