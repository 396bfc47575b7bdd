// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Counts the entries of maps in a thread where that takes long, and warns before the flow tables
//! are full.

use std::{path::Path, thread, time::Duration};

use control::{apply::Fill, causes::chain, object::Warning};
use datapath::{FlowCounts, Occupancy, read};
use proxy_common::maps::{SOCKETS_V4, SOCKETS_V6};
use tokio::time::Instant;

use crate::metrics::Metrics;

/// How often to count the entries of maps that the agent does not walk through for another purpose.
const EVERY: Duration = Duration::from_secs(30);

/// Counts, in a thread, the entries of maps that only the eBPF programs fill.
#[derive(Debug, Default)]
pub(super) struct Counting {
    due: Option<Instant>,
    /// Returns what it has counted.
    thread: Option<thread::JoinHandle<Vec<Fill>>>,
}

impl Counting {
    /// Starts a thread that counts, when due and if none is running.
    pub(super) fn go_on(&mut self, now: Instant, pin_dir: &Path, metrics: &Metrics) {
        let is_due = self.due.is_none_or(|due| now >= due);
        let is_free = self
            .thread
            .as_ref()
            .is_none_or(thread::JoinHandle::is_finished);
        if !is_due || !is_free {
            return;
        }
        self.due = Some(now + EVERY);
        let (pin_dir, metrics) = (pin_dir.to_owned(), metrics.clone());
        self.thread = Some(thread::spawn(move || {
            let fills = read::fills(&pin_dir).unwrap_or_else(|error| {
                tracing::debug!("maps could not be counted: {}", chain(&error));
                Vec::new()
            });
            metrics.state.set_maps(&fills);
            fills
        }));
    }

    /// Returns how full the socket tables were when last counted; a second call returns nothing
    /// until they are counted again. Growth of these tables is decided by it.
    pub(super) fn take_sockets(&mut self) -> Vec<Fill> {
        let ended = self.thread.take_if(|thread| thread.is_finished());
        let counted = ended.and_then(|thread| thread.join().ok());
        let mut sockets = counted.unwrap_or_default();
        sockets.retain(|fill| [SOCKETS_V4, SOCKETS_V6].contains(&fill.map));
        sockets
    }
}

/// Returns a warning about each flow table of which established connections need three quarters.
pub(super) fn nearly_full(flows: &Occupancy) -> impl Iterator<Item = Warning> {
    let tables = ["IPv4", "IPv6"].into_iter();
    let tables = tables.zip(flows.fills(FlowCounts::needed));
    let full = tables.filter(|(_, fill)| fill.is_nearly_full());
    full.map(|(family, fill)| Warning {
        object: format!("flow table of {family}"),
        reason: format!(
            "established connections need three quarters of its {} entries: when they fill it, new ones are refused; raise portolan.maps.flows, or find out who opens so many connections with `portolan flows`",
            fill.capacity,
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flow_table_three_quarters_full_of_established_connections_gives_a_warning() {
        let with = |kept, entries| {
            let mut flows = Occupancy::default();
            flows.v4.capacity = 1024;
            (flows.v4.kept, flows.v4.entries) = (kept, entries);
            let warnings = nearly_full(&flows).map(|warning| warning.object);
            Vec::from_iter(warnings)
        };
        assert_eq!(with(511, 1024), [""; 0]);
        assert_eq!(with(768, 768), ["flow table of IPv4"]);
    }
}
