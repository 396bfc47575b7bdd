// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The measured figures, each as a table shows it. They are stored in a file after every cell, so
//! that an interrupted run can continue.

use std::{collections::BTreeSet, fs, path::Path};

use anyhow::{Context, Result};
use lab::load::{machine, setup::Setup, statistics::quantiles};
use serde::{Deserialize, Serialize};

use crate::plan::{Cell, Proxy};

/// The settings of a node, and the proxy on it: a row of a table.
pub(crate) type Row = (Setup, Proxy);

/// The figures of a run, finished or not.
#[derive(Serialize, Deserialize)]
pub(crate) struct Results {
    pub(crate) date: String,
    /// The machine, the versions of the measured programs, and the settings of the run.
    pub(crate) machine: String,
    /// The cells in the order in which they were measured.
    pub(crate) cells: Vec<Measured>,
}

/// What was measured in one cell.
#[derive(Serialize, Deserialize)]
pub(crate) struct Measured {
    pub(crate) cell: Cell,
    figures: Vec<Figure>,
}

#[derive(Serialize, Deserialize)]
pub(crate) struct Figure {
    /// The heading of its table.
    heading: String,
    /// The number, for pictures.
    pub(crate) value: f64,
    pub(crate) shown: String,
}

impl Measured {
    pub(crate) const fn new(cell: Cell) -> Self {
        let figures = Vec::new();
        Self { cell, figures }
    }

    pub(crate) fn add(&mut self, heading: &str, value: f64, shown: String) {
        self.figures.push(Figure {
            heading: heading.to_owned(),
            value,
            shown,
        });
    }

    /// Adds the median of latencies in milliseconds; shows the 99th percentile and their number
    /// too, and what is behind.
    pub(crate) fn add_latency(&mut self, heading: &str, samples: Vec<f64>, behind: &str) {
        let count = samples.len();
        let [p50, p99] = quantiles(samples, [0.5, 0.99]);
        let shown = format!("{p50:.1} / {p99:.1} ({count}){behind}");
        self.add(heading, p50, shown);
    }

    pub(crate) fn find(&self, heading: &str) -> Option<&Figure> {
        self.figures.iter().find(|figure| figure.heading == heading)
    }
}

impl Results {
    /// Returns the results saved in `file` if they are from the same machine with the same
    /// versions, else empty ones. An error if the file cannot be read as results.
    pub(crate) fn resume(file: &Path, machine: String) -> Result<Self> {
        let fresh = Self {
            date: machine::today(),
            machine,
            cells: Vec::new(),
        };
        let Ok(text) = fs::read_to_string(file) else {
            return Ok(fresh);
        };
        let earlier: Self = serde_json::from_str(&text).with_context(|| {
            let file = file.display();
            format!("read {file}: remove it to measure everything anew")
        })?;
        if earlier.machine == fresh.machine {
            return Ok(earlier);
        }
        println!("the saved figures are from another machine or version, so they are not used");
        Ok(fresh)
    }

    pub(crate) fn find(&self, cell: &Cell) -> Option<&Measured> {
        self.cells.iter().find(|measured| measured.cell == *cell)
    }

    /// Returns the rows of a table that have a figure, each with its figures by the number of
    /// services; None where nothing was measured.
    pub(crate) fn table(&self, heading: &str) -> Vec<(Row, Vec<Option<&Figure>>)> {
        let cells = self.cells.iter().map(|measured| measured.cell);
        let rows: BTreeSet<Row> = cells.map(|cell| (cell.setup, cell.proxy)).collect();
        let rows = rows.into_iter().map(|(setup, proxy)| {
            let figure = |services| {
                let cell = Cell {
                    services,
                    setup,
                    proxy,
                };
                self.find(&cell)?.find(heading)
            };
            let figures = self.services().into_iter().map(figure);
            ((setup, proxy), figures.collect::<Vec<_>>())
        });
        rows.filter(|(_, figures)| figures.iter().any(Option::is_some))
            .collect()
    }

    /// Returns the headings of all figures, in the order in which they were measured first.
    pub(crate) fn headings(&self) -> Vec<&str> {
        let mut headings = Vec::new();
        for figure in self.cells.iter().flat_map(|measured| &measured.figures) {
            if !headings.contains(&figure.heading.as_str()) {
                headings.push(&figure.heading);
            }
        }
        headings
    }

    /// Returns the numbers of services that were measured.
    pub(crate) fn services(&self) -> BTreeSet<u32> {
        let cells = self.cells.iter();
        cells.map(|measured| measured.cell.services).collect()
    }

    /// Adds what was measured in a cell, and writes all results to `file`.
    pub(crate) fn add(&mut self, measured: Measured, file: &Path) -> Result<()> {
        self.cells.push(measured);
        let text = serde_json::to_string_pretty(self)? + "\n";
        let new = file.with_extension("new");
        fs::write(&new, text).with_context(|| format!("write {}", new.display()))?;
        fs::rename(&new, file).with_context(|| format!("replace {}", file.display()))
    }
}
