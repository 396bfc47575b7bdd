// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The program `portolan` with another layout of its maps, as a later version may have it. For
//! tests of upgrades.

#[path = "main.rs"]
mod agent;

fn main() -> std::process::ExitCode {
    agent::main()
}
