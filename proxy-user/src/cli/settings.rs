// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `portolan config`: the settings in force, and where the value of each comes from. By the agent's own word; without one, by what it
//! would read.

use std::path::{Path, PathBuf};

use anyhow::Result;
use serde::Serialize;
use serde_json::{Value as Json, json};

use super::{
    agent::{Agent, AgentArgs},
    args::Show,
    list::list,
    render::{Column, Row, Tone, column, cut, plain, toned},
};
use crate::config::{Config, RawConfig, Source, document, table};

/// Arguments of `portolan config`.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct ConfigArgs {
    #[command(flatten)]
    pub agent: AgentArgs,
    /// Only settings whose keys contain this.
    #[arg(value_name = "KEY")]
    pub key: Option<String>,
    /// What this configuration file means, instead of asking the agent.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Leave out settings that have their defaults.
    #[arg(long)]
    pub changed: bool,
    #[command(flatten)]
    pub show: Show,
}

/// A setting in force.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
pub(super) struct SettingRow {
    pub(super) key: String,
    value: String,
    /// `flag`, `file`, `default`, or `?` for an agent of a version that does not say.
    pub(super) from: String,
    flag: Option<&'static str>,
}

impl Row for SettingRow {
    const COLUMNS: &'static [Column<Self>] = &[
        column("KEY", 0, |row| plain(row.key.as_str())),
        cut("VALUE", 0, |row| plain(row.value.as_str())),
        column("FROM", 0, |row| {
            let is_given = row.from != "default";
            toned(
                row.from.as_str(),
                if is_given { Tone::Good } else { Tone::Plain },
            )
        }),
        cut("FLAG", 1, |row| {
            plain(row.flag.map(|flag| format!("--{flag}")))
        }),
    ];
    fn name(&self) -> String {
        format!("setting/{}", self.key)
    }
}

/// Prints one line per setting.
pub(super) fn run(args: &ConfigArgs) -> Result<()> {
    list(&args.show, || {
        let answer = match &args.config {
            Some(path) => offline(&of_file(path)?)?,
            None => {
                let agent = Agent::find(&args.agent);
                agent.json("/configz").or_else(|unreachable| {
                    let known = match agent.pid {
                        Some(pid) => format!("by the command line of process {pid}"),
                        None => {
                            "the defaults, because no agent is seen (--config FILE reads a file)"
                                .to_owned()
                        }
                    };
                    eprintln!("portolan: {unreachable}; shown is {known}");
                    offline(&agent.config)
                })?
            }
        };
        let mut rows = rows(&answer);
        let key = args.key.as_deref().unwrap_or_default().to_lowercase();
        rows.retain(|row| {
            row.key.to_lowercase().contains(&key) && (!args.changed || row.from != "default")
        });
        Ok(rows)
    })
}

fn of_file(path: &Path) -> Result<Config> {
    let raw = RawConfig::read(path)?;
    let sources = raw.keys().map(|key| (key, Source::File)).collect();
    Ok(Config {
        sources,
        ..raw.check()?
    })
}

/// What an agent with these settings would answer.
fn offline(config: &Config) -> Result<Json> {
    Ok(json!({
        "kubeproxy.config.k8s.io": document(config)?,
        "portolan": {"sources": config.sources},
    }))
}

/// The settings of an answer of /configz.
pub(super) fn rows(answer: &Json) -> Vec<SettingRow> {
    let document = &answer["kubeproxy.config.k8s.io"];
    let sources = answer["portolan"]["sources"].as_object();
    let rows = table::settings().filter_map(|setting| {
        let value = setting
            .key
            .split('.')
            .try_fold(document, |value, name| value.get(name));
        let from = match sources {
            None => "?",
            Some(sources) => sources
                .get(setting.key)
                .and_then(Json::as_str)
                .unwrap_or("default"),
        };
        // One that has no value is in no file.
        let value = value.or_else(|| (from != "default").then_some(&Json::Null))?;
        Some(SettingRow {
            key: setting.key.to_owned(),
            value: value
                .as_str()
                .map_or_else(|| value.to_string(), str::to_owned),
            from: from.to_owned(),
            flag: setting.flag,
        })
    });
    rows.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_says_where_it_comes_from() {
        let config = Config {
            sources: [
                ("clusterCIDR", Source::Flag),
                ("portolan.forwarding", Source::File),
            ]
            .into(),
            ..Config::default()
        };
        let answer = offline(&config).expect("written");
        let rows = rows(&answer);
        let from = |key: &str| {
            let row = rows.iter().find(|row| row.key == key);
            row.map(|row| row.from.as_str())
        };
        assert_eq!(from("clusterCIDR"), Some("flag"));
        assert_eq!(from("portolan.forwarding"), Some("file"));
        assert_eq!(from("metricsBindAddress"), Some("default"));
        let address = rows.iter().find(|row| row.key == "metricsBindAddress");
        assert_eq!(
            address.map(|row| row.value.as_str()),
            Some("127.0.0.1:10249")
        );
        assert_eq!(from("nothing"), None);
    }

    #[test]
    fn an_agent_of_another_version_does_not_say() {
        let answer =
            json!({"kubeproxy.config.k8s.io": document(&Config::default()).expect("written")});
        assert!(rows(&answer).iter().all(|row| row.from == "?"));
    }
}
