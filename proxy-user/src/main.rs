// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The command `portolan`: parses the arguments, runs the command, and prints the error if it
//! fails.

use std::process::ExitCode;

use cli::{execute, parse};
use config::telemetry;

pub(crate) fn main() -> ExitCode {
    let cli = match parse() {
        Ok(cli) => cli,
        Err(status) => return status,
    };
    match execute(&cli) {
        Ok(status) => status,
        Err(error) => {
            telemetry::fail(&error);
            ExitCode::FAILURE
        }
    }
}
