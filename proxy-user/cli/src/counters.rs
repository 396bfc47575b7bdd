// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `portolan counters`: lists how many packets and calls had each outcome, and what it means.

use std::time::Instant;

use anyhow::Result;
use config::runbooks::of_outcome;
use datapath::read::Reader;
use proxy_common::Counter;
use serde::Serialize;

use super::{
    args::Show,
    frame::Pins,
    list::{Row, list},
    table::{Cell, Column, Tone, WIDE, column, cut, plain, toned},
};

/// Arguments of `portolan counters`.
#[derive(clap::Args, Clone, Debug)]
pub struct CounterArgs {
    #[command(flatten)]
    pub pins: Pins,
    /// Only counters whose names contain this: dropped, rejected, socket.
    #[arg(value_name = "NAME")]
    pub name: Option<String>,
    /// Leave out counters that are 0.
    #[arg(long)]
    pub nonzero: bool,
    #[command(flatten)]
    pub show: Show,
}

/// A counter as a row of the list. Rows are sorted in the order of the counters in the map.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct CounterRow {
    #[serde(skip)]
    place: usize,
    name: &'static str,
    count: u64,
    /// The rate since the previous reading; None at the first reading.
    #[serde(skip_serializing_if = "Option::is_none")]
    per_second: Option<u64>,
    help: &'static str,
    /// The documentation page for a problem; None for a counter of normal events.
    #[serde(skip_serializing_if = "Option::is_none")]
    page: Option<&'static str>,
}

impl Row for CounterRow {
    const COLUMNS: &'static [Column<Self>] = &[
        column("NAME", 0, |row| plain(row.name)),
        column("COUNT", 0, count),
        column("PER-SECOND", 1, |row| plain(row.per_second)),
        cut("MEANING", 2, |row| plain(row.help)),
        column("PAGE", WIDE, |row| plain(row.page)),
    ];
    fn name(&self) -> String {
        format!("counter/{}", self.name)
    }
}

fn count(row: &CounterRow) -> Cell {
    let is_loss = row.name.starts_with("dropped") || row.name.ends_with("table_full");
    let tone = match row.count {
        0 => Tone::Plain,
        _ if is_loss => Tone::Bad,
        _ if row.name.starts_with("rejected") => Tone::Warn,
        _ => Tone::Plain,
    };
    toned(row.count, tone)
}

pub(super) fn run(args: &CounterArgs) -> Result<()> {
    let mut before: Option<(Instant, Vec<u64>)> = None;
    list(&args.show, || {
        let counts = Reader::without_names(&args.pins.pin_dir)?.counters()?;
        let now = Instant::now();
        let mut rows = rows(&counts);
        if let Some((then, last)) = &before {
            let elapsed = (now - *then).as_secs_f64();
            for (row, last) in rows.iter_mut().zip(last) {
                row.per_second = Some(rate(row.count, *last, elapsed));
            }
        }
        before = Some((now, counts));
        let name = args.name.as_deref().unwrap_or_default();
        rows.retain(|row| row.name.contains(name) && (!args.nonzero || row.count > 0));
        if rows.is_empty() && !args.nonzero {
            anyhow::bail!(
                "no counter's name contains {name:?}; `portolan counters -o name` has all"
            );
        }
        Ok(rows)
    })
}

/// Returns a row for every counter. `counts`: their values, in the order of `Counter::ALL`.
pub(super) fn rows(counts: &[u64]) -> Vec<CounterRow> {
    let all = Counter::ALL.iter().zip(counts).enumerate();
    let rows = all.map(|(place, (counter, count))| CounterRow {
        place,
        name: counter.name(),
        count: *count,
        per_second: None,
        help: counter.help().trim(),
        page: of_outcome(*counter),
    });
    rows.collect()
}

/// Returns the rate per second, rounded. `before`: the earlier count. If that was larger, the maps
/// were replaced since, or the id belongs to another service port now, and all of `count` is new.
pub(super) fn rate(count: u64, before: u64, seconds: f64) -> u64 {
    let more = count.checked_sub(before).unwrap_or(count);
    (more as f64 / seconds.max(0.001)).round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_counter_has_a_row_with_its_count_and_help() {
        let counts: Vec<u64> = (0..Counter::ALL.len() as u64).collect();
        for (row, counter) in rows(&counts).iter().zip(Counter::ALL) {
            assert_eq!((row.name, row.count), (counter.name(), *counter as u64));
            assert!(row.help.ends_with('.'), "{}", row.help);
        }
    }

    #[test]
    fn a_rate_is_the_increase_per_second_even_after_a_reset() {
        assert_eq!(rate(30, 10, 2.0), 10);
        assert_eq!(rate(4, 10, 2.0), 2, "the maps are others now");
        assert_eq!(rate(10, 10, 0.0), 0);
    }
}
