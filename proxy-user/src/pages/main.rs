// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Writes portolan's manual pages, shell completions, docs/settings.md and docs/metrics.md into a
//! folder, from its own definitions. Called by `cargo xtask release`.

mod settings;

use std::{env, fs, io, path::Path};

use clap::CommandFactory;
use clap_complete::Shell;
use cli::Cli;

fn main() -> io::Result<()> {
    let folder = env::args_os().nth(1);
    let folder = folder.ok_or_else(|| io::Error::other("the folder to write into is missing"))?;
    let folder = Path::new(&folder);
    fs::create_dir_all(folder)?;
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        clap_complete::generate_to(shell, &mut Cli::command(), "portolan", folder)?;
    }
    fs::write(folder.join("settings.md"), settings::page())?;
    fs::write(folder.join("metrics.md"), agent::metrics::page::render())?;
    // One manual page for `portolan`, and one for each of its subcommands.
    clap_mangen::generate_to(Cli::command(), folder)
}
