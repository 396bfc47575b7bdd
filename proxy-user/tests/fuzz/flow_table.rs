// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A family's pinned flow table and its entries, also for other tests and the benchmark of packets.

use std::{io, path::Path};

use datapath::maps::{FlowTable, family::Family, pins::layout_dir};
use proxy_common::{FlowEntry, FlowKey};

pub(crate) fn flow_table<A: Family>(pin_dir: &Path) -> io::Result<FlowTable<A>> {
    FlowTable::open(&layout_dir(pin_dir))
}

/// Returns every entry of a table.
pub(crate) fn entries<A: Family>(of: &FlowTable<A>) -> io::Result<Vec<(FlowKey<A>, FlowEntry<A>)>> {
    let mut entries = Vec::new();
    of.each(|key, entry| entries.push((key, entry)))?;
    Ok(entries)
}
