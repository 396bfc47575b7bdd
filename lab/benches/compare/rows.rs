// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The measured figures, arranged for tables and pictures. A row is one proxy with the settings of
//! its node, a column is one number of services. From `Results` alone.

use lab::load::setup::Setup;

use crate::{
    plan::{Measure, Proxy},
    results::{Measured, Packets, Results},
};

/// The settings of a node, and the proxy on it.
pub(crate) type Row = (Setup, Proxy);

pub(crate) struct Rows<'a> {
    pub(crate) results: &'a Results,
    pub(crate) services: Vec<u32>,
    pub(crate) rows: Vec<Row>,
}

impl<'a> Rows<'a> {
    pub(crate) fn new(results: &'a Results) -> Self {
        let cells = || results.cells.iter().map(|(cell, _)| cell);
        let mut rows: Vec<_> = cells().map(|cell| (cell.setup, cell.proxy)).collect();
        rows.sort_unstable();
        rows.dedup();
        Self {
            results,
            services: results.services(),
            rows,
        }
    }

    pub(crate) fn measured(&self, (setup, proxy): Row, services: u32) -> Option<&'a Measured> {
        self.results.measured(setup, proxy, services)
    }

    pub(crate) fn packets(&self, row: Row, services: u32, measure: Measure) -> Option<&'a Packets> {
        self.measured(row, services)?.packets.get(&measure)
    }
}
