// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Parses arguments, starts telemetry, runs a command, prints the error chain once.
fn main() {}
