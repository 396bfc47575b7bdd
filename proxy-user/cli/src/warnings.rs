// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `portolan warnings`: lists the agent's present warnings.

use anyhow::{Context, Result, anyhow};
use serde::{Deserialize, Serialize};

use super::{
    agent::{Agent, AgentArgs},
    args::Show,
    list::{Row, list},
    table::{Column, WIDE, column, cut, plain},
};

/// Arguments of `portolan warnings`.
#[derive(clap::Args, Clone, Debug)]
pub struct WarningArgs {
    #[command(flatten)]
    pub agent: AgentArgs,
    /// Only warnings about objects whose names contain this.
    #[arg(value_name = "NAME")]
    pub name: Option<String>,
    #[command(flatten)]
    pub show: Show,
}

/// A warning as a row of the list, as the agent sends it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub(super) struct WarningRow {
    pub(super) object: String,
    pub(super) topic: String,
    /// The page that explains the warning; empty if the agent's version does not send it.
    #[serde(default)]
    pub(super) page: String,
    pub(super) reason: String,
}

impl Row for WarningRow {
    const COLUMNS: &'static [Column<Self>] = &[
        cut("OBJECT", 0, |row| plain(row.object.as_str())),
        column("TOPIC", 1, |row| plain(row.topic.as_str())),
        cut("REASON", 0, |row| plain(row.reason.as_str())),
        column("PAGE", WIDE, |row| plain(row.page.as_str())),
    ];
    fn name(&self) -> String {
        format!("warning/{}/{}", self.topic, self.object)
    }
}

pub(super) fn read(agent: &Agent) -> Result<Vec<WarningRow>> {
    serde_json::from_value(agent.json("/warnings")?)
        .map_err(|error| anyhow!("the agent's warnings are of another form: {error}"))
}

pub(super) fn run(args: &WarningArgs) -> Result<()> {
    list(&args.show, || {
        let mut rows = read(&Agent::find(&args.agent))
            .context("only a running agent knows what it warns of; `portolan check` looks at the node without one")?;
        let name = args.name.as_deref().unwrap_or_default();
        rows.retain(|row| row.object.contains(name));
        Ok(rows)
    })
}
