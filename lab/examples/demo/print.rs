// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The table that the demo prints, and what it says about each flow.

use std::{collections::BTreeMap, net::IpAddr};

use comfy_table::{ContentArrangement, Table, presets::UTF8_FULL_CONDENSED};
use lab::traffic::probe::{Attempt, Outcome};

const TABLE_WIDTH: u16 = 150;

pub(crate) fn new_table(header: [&str; 4]) -> Table {
    let mut table = Table::new();
    table
        .load_style(UTF8_FULL_CONDENSED)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_width(TABLE_WIDTH)
        .set_header(header);
    table
}

/// Describes the outcome of a flow's connections for people. `names` are the hosts' names by
/// address.
pub(crate) fn outcome_of(attempts: &[Attempt], names: &BTreeMap<IpAddr, &str>) -> String {
    let name = |ip: IpAddr| names.get(&ip).copied().unwrap_or("a gateway of node-a");
    let mut answered: BTreeMap<&str, usize> = BTreeMap::new();
    let mut seen: BTreeMap<IpAddr, &str> = BTreeMap::new();
    let mut other: BTreeMap<String, usize> = BTreeMap::new();
    for attempt in attempts {
        match &attempt.outcome {
            Outcome::Answered(answer) => {
                *answered.entry(name(answer.by.ip())).or_default() += 1;
                seen.insert(answer.seen.ip(), name(answer.seen.ip()));
            }
            Outcome::Refused => *other.entry("refused".to_owned()).or_default() += 1,
            Outcome::Silence => *other.entry("no answer".to_owned()).or_default() += 1,
            outcome => *other.entry(format!("{outcome:?}")).or_default() += 1,
        }
    }
    let mut lines = Vec::new();
    if !answered.is_empty() {
        let counts: Vec<_> = answered
            .iter()
            .map(|(by, count)| format!("{by}: {count}"))
            .collect();
        lines.push(format!("answered by {}", counts.join(", ")));
        let sources: Vec<_> = seen
            .iter()
            .map(|(ip, who)| format!("{ip} ({who})"))
            .collect();
        lines.push(format!("source seen: {}", sources.join(", ")));
    }
    if !other.is_empty() {
        let slowest = attempts
            .iter()
            .map(|attempt| attempt.after)
            .max()
            .unwrap_or_default();
        lines.extend(
            other
                .iter()
                .map(|(what, count)| format!("{count} {what}, within {slowest:.1?}")),
        );
    }
    lines.join("\n")
}
