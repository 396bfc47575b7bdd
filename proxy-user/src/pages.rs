// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Writes portolan's manual pages and shell completions into a folder, from its own definition of the command line. Called by
//! `cargo xtask release`.

use std::{env, fs, io, path::Path};

use clap::{Command, CommandFactory};
use clap_complete::{Shell, generate_to};
use clap_mangen::Man;
use portolan::cli::Cli;

fn main() -> io::Result<()> {
    let folder = env::args_os().nth(1);
    let folder = folder.ok_or_else(|| io::Error::other("the folder to write into is missing"))?;
    let folder = Path::new(&folder);
    fs::create_dir_all(folder)?;
    let mut command = Cli::command();
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        generate_to(shell, &mut command, "portolan", folder)?;
    }
    command = command.disable_help_subcommand(true);
    command.build();
    pages(&command, "portolan", folder)
}

/// One page for the command, and one for each of its own.
fn pages(command: &Command, name: &str, folder: &Path) -> io::Result<()> {
    let mut page = Vec::new();
    let titled = command.clone().name(name.to_owned()).display_name(name.to_owned());
    Man::new(titled).section("8").date("").render(&mut page)?;
    fs::write(folder.join(format!("{name}.8")), page)?;
    for inner in command.get_subcommands().filter(|inner| !inner.is_hide_set()) {
        pages(inner, &format!("{name}-{}", inner.get_name()), folder)?;
    }
    Ok(())
}
