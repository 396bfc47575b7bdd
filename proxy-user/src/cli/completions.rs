// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `portolan completions`: what a shell needs to complete the command line.

use std::io;

use clap::CommandFactory;
use clap_complete::{Shell, generate};

use super::Cli;

/// Arguments of `portolan completions`.
#[derive(clap::Args, Clone, Debug)]
pub struct CompletionArgs {
    /// The shell.
    pub shell: Shell,
}

/// Prints the script.
pub(super) fn run(args: &CompletionArgs) -> anyhow::Result<()> {
    generate(
        args.shell,
        &mut Cli::command(),
        "portolan",
        &mut io::stdout(),
    );
    Ok(())
}
