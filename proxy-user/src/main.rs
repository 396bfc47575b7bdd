// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The command `portolan`: parses the arguments, and runs the command.

use std::process::ExitCode;

pub(crate) fn main() -> ExitCode {
    match cli::parse() {
        Ok(cli) => cli::execute(&cli),
        Err(status) => status,
    }
}
