// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `portolan completions`: prints the script that a shell needs to complete the command line.

use anyhow::Context;
use clap::CommandFactory;
use clap_complete::{Shell, generate};

use super::{Cli, terminal::print};

/// Arguments of `portolan completions`.
#[derive(clap::Args, Clone, Debug)]
pub struct CompletionArgs {
    /// The shell.
    pub shell: Shell,
}

pub(super) fn run(args: &CompletionArgs) -> anyhow::Result<()> {
    // `generate` panics if it cannot write, so it writes to a buffer first.
    let mut script = Vec::new();
    generate(args.shell, &mut Cli::command(), "portolan", &mut script);
    print(&String::from_utf8_lossy(&script)).context("write")
}
