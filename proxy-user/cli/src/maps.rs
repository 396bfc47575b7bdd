// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `portolan maps`: lists every pinned map, how full it is, and the kernel memory that it takes.

use anyhow::Result;
use datapath::read::{MapRow, pinned_maps};

use super::{
    args::Show,
    frame::Pins,
    list::{Row, list},
    table::{Cell, Column, Tone, Value, column, plain, toned},
};

/// Arguments of `portolan maps`.
#[derive(clap::Args, Clone, Debug)]
pub struct MapArgs {
    #[command(flatten)]
    pub pins: Pins,
    /// Only maps whose names contain this.
    #[arg(value_name = "NAME")]
    pub name: Option<String>,
    #[command(flatten)]
    pub show: Show,
}

impl Row for MapRow {
    const COLUMNS: &'static [Column<Self>] = &[
        column("NAME", 0, |row| plain(row.name.as_str())),
        column("ENTRIES", 0, |row| plain(row.entries)),
        column("CAPACITY", 0, |row| plain(row.capacity)),
        column("FULL", 0, full),
        column("MEMORY", 0, |row| plain(row.memory.map(Value::Bytes))),
        column("KIND", 1, |row| plain(row.kind)),
        column("ID", 2, |row| plain(row.id)),
    ];
    fn name(&self) -> String {
        format!("map/{}", self.name)
    }
}

/// Returns the cell with how full the map is, in percent. It is red if [`is_nearly_full`] is true.
fn full(row: &MapRow) -> Cell {
    let value = row.fill().map(|fill| Value::Text(format!("{fill}%")));
    toned(value, Tone::Bad.when(is_nearly_full(row)))
}

/// Returns whether three quarters of the map are in use, so that the agent makes larger maps or
/// warns. Never true for an LRU map, which evicts its oldest element when it is full, nor for a
/// flow table, in which new flows take the place of others, nor for a map whose elements can
/// overflow into others.
pub(super) fn is_nearly_full(row: &MapRow) -> bool {
    let mut others = ["flow_slots", "sock_buckets"].into_iter();
    let may_be = row.kind == "lru_hash" || others.any(|name| row.name.starts_with(name));
    !may_be && row.fill().is_some_and(|fill| fill >= 75)
}

pub(super) fn run(args: &MapArgs) -> Result<()> {
    list(&args.show, || {
        let mut rows = pinned_maps(&args.pins.pin_dir)?;
        let name = args.name.as_deref().unwrap_or_default();
        rows.retain(|row| row.name.contains(name));
        if rows.is_empty() {
            anyhow::bail!("no map's name contains {name:?}; `portolan maps -o name` has all");
        }
        Ok(rows)
    })
}
