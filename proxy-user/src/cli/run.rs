// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `portolan run`: arguments of the agent.

/// Arguments of `portolan run`.
#[derive(clap::Args, Debug)]
pub struct RunArgs {}

/// Runs the agent until it is told to stop.
pub fn run(_args: &RunArgs) -> anyhow::Result<()> {
    anyhow::bail!("this build has no agent")
}
