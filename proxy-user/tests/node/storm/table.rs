// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The counts of the storm as tables of a document.

use std::{
    collections::BTreeMap,
    fmt::{Display, Write},
    time::Duration,
};

use super::{
    kinds::{ClientKind, Kind},
    record::{BETWEEN, Record, Tally, Times},
};

const COLUMNS: &str = "connections | requests | lost | wrong | failed while broken by hand | repeated | longest, ms |";

fn row(text: &mut String, first: &str, tally: &Tally) {
    let Tally {
        connections,
        requests,
        lost,
        wrong,
        harmed,
        repeated,
        longest,
    } = tally;
    let longest = longest.as_millis();
    let line = format!(
        "| {first} | {connections} | {requests} | {lost} | {wrong} | {harmed} | {repeated} | {longest} |\n"
    );
    text.push_str(&line);
}

/// A table of sums by one part of the key; its last row is the sum of all.
fn sums<K: Ord>(
    record: &Record,
    title: &str,
    of: impl Fn(&'static str, Kind, ClientKind) -> K,
    name: impl Fn(&K) -> String,
) -> String {
    let mut by: BTreeMap<K, Tally> = BTreeMap::new();
    let mut all = Tally::default();
    for ((phase, kind, way), tally) in record.tallies() {
        by.entry(of(phase, kind, way)).or_default().add(&tally);
        all.add(&tally);
    }
    let columns = title.matches('|').count() + COLUMNS.matches('|').count() + 1;
    let mut text = format!("| {title} | {COLUMNS}\n|{}\n", " --- |".repeat(columns));
    for (key, tally) in by {
        row(&mut text, &name(&key), &tally);
    }
    row(&mut text, &format!("all{}", " |".repeat(columns - 8)), &all);
    text
}

/// The document with all tables.
pub(crate) fn render(record: &Record, took: Duration, seed: impl Display) -> String {
    let times = record.times();
    let mut text = String::new();
    let count: u32 = times.values().map(|times| times.count).sum();
    let failures = record.failures().len();
    let seconds = took.as_secs();
    _ = writeln!(
        text,
        "A storm of {seconds} s, seed {seed}: {count} disturbances, {failures} requests lost or wrong that may not be.\n"
    );
    let disturbance = |name: &&str| {
        let Times { count, longest } = times.get(name).copied().unwrap_or_default();
        match *name {
            BETWEEN => "none, between two | |".to_owned(),
            _ => format!("{name} | {count} | {:.1}", longest.as_secs_f64()),
        }
    };
    text += &sums(
        record,
        "disturbance | times | longest until served, s",
        |phase, _, _| phase,
        disturbance,
    );
    text += "\n";
    text += &sums(
        record,
        "kind",
        |_, kind, _| kind,
        |kind| kind.name().to_owned(),
    );
    text += "\n";
    text += &sums(record, "way", |_, _, way| way, |way| way.name().to_owned());
    text += "\nEach disturbance by kind: requests, and what failed of them (lost + wrong / while broken by hand).\n\n";
    text + &crossed(record)
}

/// The table of disturbances by kinds of requests.
fn crossed(record: &Record) -> String {
    let mut by: BTreeMap<(&str, Kind), Tally> = BTreeMap::new();
    for ((phase, kind, _), tally) in record.tallies() {
        by.entry((phase, kind)).or_default().add(&tally);
    }
    let mut phases: Vec<_> = by.keys().map(|(phase, _)| *phase).collect();
    phases.dedup();
    let names = Kind::ALL.map(Kind::name).join(" | ");
    let lines = " --- |".repeat(Kind::ALL.len() + 1);
    let mut text = format!("| disturbance | {names} |\n|{lines}\n");
    for phase in phases {
        let cells = Kind::ALL.map(|kind| {
            let tally = by.get(&(phase, kind)).cloned().unwrap_or_default();
            let failed = tally.lost + tally.wrong;
            format!("{}: {failed} / {}", tally.requests, tally.harmed)
        });
        text += &format!("| {phase} | {} |\n", cells.join(" | "));
    }
    text
}
