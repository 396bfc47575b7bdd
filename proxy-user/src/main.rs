// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Parses arguments, starts telemetry, runs a command, prints the error chain once.

use std::process::ExitCode;

use clap::Parser;
use portolan::cli::{Cli, execute};

fn main() -> ExitCode {
    match execute(&Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("portolan: {error:#}");
            ExitCode::FAILURE
        }
    }
}
