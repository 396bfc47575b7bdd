// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tables of a run in Markdown, and its files. The tables themselves are pure.

use std::{fmt::Write as _, fs, path::Path};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::{
    clients::Kind,
    figures::Rounds,
    rows::{ROWS, shown},
};
use crate::load::machine;

/// The nodes of a large cluster.
const LARGE: f64 = 5_000.0;
/// Changes of full slices a second in a large cluster.
const RATE: f64 = 10.0;

/// A run: its sizes, the machine, and the figures.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    pub agents: usize,
    pub processes: usize,
    pub services: u32,
    pub endpoints: u32,
    pub changes: u32,
    /// Whether the programs were built without optimization, so that only ratios of bytes count.
    pub debug: bool,
    pub machine: String,
    pub rounds: Rounds,
}

impl Report {
    /// Returns the tables in Markdown.
    pub fn markdown(&self) -> String {
        let mut text = self.about();
        self.measured(&mut text);
        self.computed(&mut text);
        text
    }

    fn about(&self) -> String {
        let rounds = self.rounds.alone.len();
        let debug = if self.debug {
            " A debug build: portolan's times do not count."
        } else {
            ""
        };
        format!(
            "{}: {} agents in {} processes, {} services, {} endpoints; {} changes of a slice of 100 endpoints; median of {rounds} rounds.{debug}\n\n",
            self.machine, self.agents, self.processes, self.services, self.endpoints, self.changes
        )
    }

    fn measured(&self, text: &mut String) {
        let rounds = &self.rounds;
        text.push_str("| | no agent | portolan | kube-proxy's informers | ratio |\n| --- | --- | --- | --- | --- |\n");
        for row in &ROWS {
            let [portolan, informers] =
                [Kind::Portolan, Kind::KubeProxy].map(|kind| rounds.of(row, kind));
            let cells = [rounds.of_server(row), portolan, informers].map(|value| shown(row, value));
            let ratio = ratio(portolan, informers);
            // Writing to a String cannot fail.
            _ = writeln!(
                text,
                "| {} | {} | {ratio} |",
                row.heading,
                cells.join(" | ")
            );
        }
    }

    /// What the figures make for a large cluster if every agent more costs what the measured ones
    /// do.
    fn computed(&self, text: &mut String) {
        let rounds = &self.rounds;
        let agents = self.agents as f64;
        _ = write!(
            text,
            "\nComputed for {LARGE} agents by multiplication, not measured. Nothing where {agents} agents are too few for their part to show:\n\n| | portolan | kube-proxy's informers | ratio |\n| --- | --- | --- | --- |\n"
        );
        let change = |kind| {
            let parts = rounds.change_of_server(kind, agents);
            parts.map_or(f64::NAN, |[alone, added]| alone + added * LARGE)
        };
        let median = |kind, value| rounds.median(kind, value);
        let rows: [(&str, &dyn Fn(Kind) -> f64); 5] = [
            ("start of all: sent by the server, GB", &|kind| {
                median(kind, |figures| figures.start.bytes_per_agent) * LARGE / 1e9
            }),
            ("start of all: server's processor time, s", &|kind| {
                median(kind, |figures| figures.start.server_seconds) / agents * LARGE
            }),
            ("a change: sent by the server, MB", &|kind| {
                median(kind, |figures| figures.change.bytes_per_agent) * LARGE / 1e6
            }),
            ("a change: server's processor time, ms", &change),
            ("ten changes a second: processors of the server", &|kind| {
                change(kind) * RATE / 1e3
            }),
        ];
        for (heading, value) in rows {
            let both = [Kind::Portolan, Kind::KubeProxy].map(|kind| {
                let value = value(kind);
                value.is_finite().then_some(value)
            });
            let cells = both.map(|value| value.map_or_else(String::new, |v| format!("{v:.2}")));
            let ratio = ratio(both[0], both[1]);
            _ = writeln!(text, "| {heading} | {} | {ratio} |", cells.join(" | "));
        }
    }

    /// Writes the figures and the tables into a folder.
    pub fn write(&self, folder: &Path) -> Result<()> {
        fs::create_dir_all(folder).with_context(|| format!("make {}", folder.display()))?;
        let json = serde_json::to_string_pretty(self).context("write the figures")?;
        for (name, text) in [("fleet.json", json), ("fleet.md", self.markdown())] {
            let file = folder.join(name);
            fs::write(&file, text).with_context(|| format!("write {}", file.display()))?;
            println!("{}", file.display());
        }
        Ok(())
    }
}

/// Returns portolan's part of kube-proxy's value; nothing where one is missing or 0.
fn ratio(portolan: Option<f64>, informers: Option<f64>) -> String {
    match (portolan, informers) {
        (Some(portolan), Some(informers)) if informers > 0.0 => {
            format!("{:.2}", portolan / informers)
        }
        _ => String::new(),
    }
}

/// Describes this machine in a line: the date, processors, the kernel, and how many threads wanted
/// to run in the last minute.
pub fn machine() -> String {
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    format!(
        "{}, {} processors ({}), Linux {}, load {} before",
        machine::today(),
        machine::processors(),
        machine::processor(),
        machine::kernel(),
        load.split(' ').next().unwrap_or_default()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::figures::{Alone, Figures};

    fn report(kinds: &[(Kind, f64)]) -> Report {
        let fleet = |(kind, factor): &(Kind, f64)| {
            let mut figures = Figures::default();
            figures.start.bytes_per_agent = factor * 2e6;
            figures.change.server_milliseconds = 4.0 + factor;
            (*kind, figures)
        };
        Report {
            agents: 50,
            processes: 2,
            services: 20,
            endpoints: 200,
            changes: 5,
            debug: false,
            machine: "here".to_owned(),
            rounds: Rounds {
                alone: vec![Alone {
                    change_milliseconds: 4.0,
                    start_seconds: 2.0,
                    ready_seconds: 3.0,
                }],
                fleets: kinds.iter().map(fleet).collect(),
            },
        }
    }

    #[test]
    fn the_table_has_both_and_their_ratio() {
        let text = report(&[(Kind::Portolan, 1.0), (Kind::KubeProxy, 4.0)]).markdown();
        assert!(
            text.contains("| start of all: received by an agent, kB |  | 2000.0 | 8000.0 | 0.25 |"),
            "{text}"
        );
        assert!(
            text.contains("| a change: server's processor time, ms | 4.00 | 5.00 | 8.00 | 0.62 |"),
            "{text}"
        );
    }

    #[test]
    fn the_large_cluster_multiplies_only_what_each_agent_adds() {
        let text = report(&[(Kind::Portolan, 1.0), (Kind::KubeProxy, 4.0)]).markdown();
        assert!(
            text.contains("| start of all: sent by the server, GB | 10.00 | 40.00 | 0.25 |"),
            "{text}"
        );
        assert!(
            text.contains("| a change: server's processor time, ms | 104.00 | 404.00 | 0.26 |"),
            "{text}"
        );
        assert!(
            text.contains(
                "| ten changes a second: processors of the server | 1.04 | 4.04 | 0.26 |"
            ),
            "{text}"
        );
    }

    #[test]
    fn the_part_of_agents_that_does_not_show_is_not_multiplied() {
        let text = report(&[(Kind::Portolan, 1.0), (Kind::KubeProxy, -0.5)]).markdown();
        assert!(
            text.contains("| a change: server's processor time, ms | 104.00 |  |  |"),
            "{text}"
        );
    }

    #[test]
    fn without_informers_their_column_is_empty() {
        let text = report(&[(Kind::Portolan, 1.0)]).markdown();
        assert!(text.contains("| 2000.0 |  |  |"), "{text}");
        assert!(!text.contains("NaN"), "{text}");
    }
}
