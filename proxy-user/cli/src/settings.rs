// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `portolan config`: lists the settings in force, and where each value comes from. Asks the agent;
//! without an agent, shows the settings that it would have.

use std::path::{Path, PathBuf};

use anyhow::Result;
use config::{Config, ConfigError, RawConfig, Source, document, setting::Setting, table};
use control::causes::chain;
use serde::Serialize;
use serde_json::{Value as Json, json};

use super::{
    agent::{Agent, AgentArgs},
    args::Show,
    frame::BadInput,
    list::{Row, list},
    table::{Column, Tone, column, cut, plain, toned},
};

/// Arguments of `portolan config`.
#[derive(clap::Args, Clone, Debug)]
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

/// A setting in force, as a row of the list.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
pub(super) struct SettingRow {
    pub(super) key: String,
    /// Empty for a setting without a value.
    value: String,
    /// What a default stands for that is no value itself, such as `by the machine`.
    #[serde(skip_serializing_if = "Option::is_none")]
    means: Option<String>,
    /// `flag`, `file`, `default`, or `?` if the agent's version does not say.
    pub(super) from: String,
    flag: Option<&'static str>,
}

impl Row for SettingRow {
    const COLUMNS: &'static [Column<Self>] = &[
        column("KEY", 0, |row| plain(row.key.as_str())),
        cut("VALUE", 0, |row| plain(row.shown())),
        column("FROM", 0, |row| {
            let is_given = row.from != "default";
            toned(row.from.as_str(), Tone::Good.when(is_given))
        }),
        cut("FLAG", 1, |row| {
            plain(row.flag.map(|flag| format!("--{flag}")))
        }),
    ];
    fn name(&self) -> String {
        format!("setting/{}", self.key)
    }
}

impl SettingRow {
    fn shown(&self) -> String {
        match (self.value.as_str(), &self.means) {
            ("", means) => means.clone().unwrap_or_default(),
            (value, Some(means)) => format!("{value}: {means}"),
            (value, None) => value.to_owned(),
        }
    }
}

/// Returns what the default of a setting stands for; None if it is `value` itself. The table's text
/// begins with the value, if there is one.
fn means(unset: &str, value: &str) -> Option<String> {
    let text = unset.replace('`', "");
    match value {
        "" => Some(text),
        _ => Some(text.strip_prefix(value)?.strip_prefix(": ")?.to_owned()),
    }
}

const UNSEEN: &str = "the defaults, because no agent is seen (--config FILE reads a file)";

pub(super) fn run(args: &ConfigArgs) -> Result<()> {
    list(&args.show, || {
        let answer = match &args.config {
            Some(path) => offline(&of_file(path)?)?,
            None => {
                let agent = Agent::find(&args.agent);
                agent.json("/configz").or_else(|unreachable| {
                    let known = match agent.pid {
                        Some(pid) => format!("by the command line of process {pid}"),
                        None => UNSEEN.to_owned(),
                    };
                    eprintln!("portolan: {unreachable}; shown is {known}");
                    offline(&agent.config)
                })?
            }
        };
        let mut rows = rows(&answer);
        let key = args.key.as_deref().unwrap_or_default().to_lowercase();
        rows.retain(|row| row.key.to_lowercase().contains(&key));
        if rows.is_empty() {
            anyhow::bail!("no setting's key contains {key:?}; `portolan config -o name` has all");
        }
        rows.retain(|row| !args.changed || row.from != "default");
        Ok(rows)
    })
}

fn of_file(path: &Path) -> Result<Config, BadInput> {
    let read = || {
        let raw = RawConfig::read(path)?;
        let sources = raw.keys().map(|key| (key, Source::File)).collect();
        Ok(Config {
            sources,
            ..raw.check()?
        })
    };
    read().map_err(|error: ConfigError| BadInput(chain(&error)))
}

/// Returns the answer at /configz that an agent with these settings would give.
fn offline(config: &Config) -> Result<Json> {
    Ok(json!({
        "kubeproxy.config.k8s.io": document(config)?,
        "portolan": {"sources": config.sources},
    }))
}

/// Returns a row for each setting in `answer`, the agent's answer at /configz.
pub(super) fn rows(answer: &Json) -> Vec<SettingRow> {
    let document = &answer["kubeproxy.config.k8s.io"];
    let sources = answer["portolan"]["sources"].as_object();
    let source = |key: &str| sources?.get(key).and_then(Json::as_str);
    let rows = table::settings().filter_map(|setting| {
        let value = found(document, setting.key);
        // Two keys with one flag are one setting, whose value the agent writes under one of them.
        let is_same = |one: &&Setting| setting.flag.is_some() && one.flag == setting.flag;
        let same = || table::settings().filter(is_same);
        let is_second = || same().next().is_some_and(|first| first.key != setting.key);
        let has_other = || same().any(|other| found(document, other.key).is_some());
        if value.is_none() && (is_second() || has_other()) {
            return None;
        }
        let of_same = || same().find_map(|one| source(one.key));
        let from = match sources {
            None => "?",
            Some(_) => source(setting.key).or_else(of_same).unwrap_or("default"),
        };
        // The file has no line for a setting without a value; the table says what that means.
        let value = match value {
            Some(Json::String(text)) => text.clone(),
            Some(value) => value.to_string(),
            None if from != "default" || setting.unset.is_some() => String::new(),
            None => return None,
        };
        let is_given = matches!(from, "flag" | "file");
        let unset = setting.unset.as_deref().filter(|_| !is_given);
        Some(SettingRow {
            key: setting.key.to_owned(),
            means: unset.and_then(|unset| means(unset, &value)),
            value,
            from: from.to_owned(),
            flag: setting.flag,
        })
    });
    rows.collect()
}

/// Returns the value of a dotted key, such as `portolan.xdp`; None if the document lacks it.
fn found<'a>(document: &'a Json, key: &str) -> Option<&'a Json> {
    let value = document.pointer(&format!("/{}", key.replace('.', "/")));
    value.filter(|value| !value.is_null())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_shows_the_source_of_its_value_or_what_a_default_stands_for() {
        let config = Config {
            sources: [
                ("clusterCIDR", Source::Flag),
                ("portolan.forwarding", Source::File),
            ]
            .into(),
            ..Config::default()
        };
        let rows = rows(&offline(&config).expect("written"));
        for (key, from, shown) in [
            ("clusterCIDR", "flag", None),
            ("portolan.forwarding", "file", Some("auto")),
            ("metricsBindAddress", "default", Some("127.0.0.1:10249")),
            ("portolan.maps.flows", "default", Some("by the machine")),
            ("portolan.maps.memory", "default", Some(MEMORY)),
            ("conntrack.udpTimeout", "default", Some(UDP)),
        ] {
            let row = rows.iter().find(|row| row.key == key).expect(key);
            assert_eq!(row.from, from, "{key}");
            assert!(shown.is_none_or(|shown| row.shown() == shown), "{key}");
        }
    }

    const MEMORY: &str = "a quarter of the machine's memory";
    const UDP: &str = "0s: 30 s in the flow table";

    #[test]
    fn a_setting_with_two_keys_has_one_row_that_says_where_it_comes_from() {
        for (key, source, from) in [
            ("clusterCIDR", Source::Flag, "flag"),
            ("detectLocal.clusterCIDRs", Source::File, "file"),
        ] {
            let config = Config {
                cluster_cidr: vec!["10.40.0.0/16".parse().expect("a range")],
                sources: [(key, source)].into(),
                ..Config::default()
            };
            let rows = rows(&offline(&config).expect("written"));
            let own = rows.iter().filter(|row| row.flag == Some("cluster-cidr"));
            let own = own.map(|row| (&*row.key, &*row.value, &*row.from));
            assert_eq!(Vec::from_iter(own), [("clusterCIDR", "10.40.0.0/16", from)]);
        }
    }

    #[test]
    fn sources_missing_from_the_agents_answer_are_shown_as_question_marks() {
        let document = document(&Config::default()).expect("written");
        let answer = json!({"kubeproxy.config.k8s.io": document});
        assert!(rows(&answer).iter().all(|row| row.from == "?"));
    }
}
