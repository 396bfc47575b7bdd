// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Logging of the agent: few lines, to stderr. Started by `cli::run`.

use std::io::IsTerminal;

use anyhow::Context;
use tracing_subscriber::EnvFilter;

/// Starts logging at a level (`info`) or by a filter (`warn,portolan::watch=debug`).
pub fn start(level: &str) -> anyhow::Result<()> {
    let filter = EnvFilter::try_new(level).with_context(|| {
        format!("logLevel {level:?} is no level; use error, warn, info, debug or trace")
    })?;
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        .try_init()
        .map_err(|error| anyhow::anyhow!("start logging: {error}"))
}
