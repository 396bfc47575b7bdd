// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Parses the arguments, runs the command, and prints the error chain if it fails.

use std::process::ExitCode;

use clap::Parser;
use portolan::{
    cli::{Cli, execute},
    telemetry,
};

pub(crate) fn main() -> ExitCode {
    match execute(&Cli::parse()) {
        Ok(status) => status,
        Err(error) => {
            telemetry::fail(&error);
            ExitCode::FAILURE
        }
    }
}
