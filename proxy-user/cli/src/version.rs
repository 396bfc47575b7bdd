// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `portolan version`: the versions of this program, of this node's agent, and of the kernel.

use anyhow::Result;
use datapath::running_kernel;
use proxy_common::maps::LAYOUT_VERSION;
use serde::Serialize;
use serde_json::Value;

use super::{
    agent::{Agent, AgentArgs},
    frame::Output,
    terminal::print_report,
};

/// Arguments of `portolan version`.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct VersionArgs {
    #[command(flatten)]
    pub agent: AgentArgs,
    /// The format.
    #[arg(long, short, value_enum, default_value_t)]
    pub output: Output,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Versions {
    version: &'static str,
    /// The version of the maps' layout that this program can read.
    layout: u32,
    /// None if no agent answers.
    agent: Option<String>,
    kernel: String,
}

/// Prints the versions. Works without an agent.
pub(super) fn run(args: &VersionArgs) -> Result<()> {
    let agent = Agent::find(&args.agent.located());
    let answer = agent.health("/livez").ok();
    let answer = answer.and_then(|(_, text)| serde_json::from_str::<Value>(&text).ok());
    let versions = Versions {
        version: env!("CARGO_PKG_VERSION"),
        layout: LAYOUT_VERSION,
        agent: answer.and_then(|answer| Some(answer["version"].as_str()?.to_owned())),
        kernel: running_kernel(),
    };
    print_report(args.output, &versions, || {
        let agent = versions.agent.as_deref().unwrap_or("does not answer");
        let (version, layout, kernel) = (versions.version, versions.layout, &versions.kernel);
        format!(
            "portolan  {version} (maps of layout {layout})\nagent     {agent}\nkernel    {kernel}"
        )
    })
}
