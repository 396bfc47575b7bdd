// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The measured figures. They are stored in a file after every cell, so that an interrupted run can
//! continue.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::plan::{Cell, Measure, Proxy};
use lab::load::{
    machine,
    setup::Setup,
    statistics::{Interval, quantiles},
};

/// The settings of a node, and the proxy on it: a row of a table.
pub(crate) type Row = (Setup, Proxy);

/// The figures of a run, finished or not.
#[derive(Default, Serialize, Deserialize)]
pub(crate) struct Results {
    pub(crate) date: String,
    /// The machine, the versions of the measured programs, and the settings of the run.
    pub(crate) machine: String,
    /// The cells in the order in which they were measured, each with its outcome.
    pub(crate) cells: Vec<(Cell, Outcome)>,
}

#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Outcome {
    Measured(Box<Measured>),
    /// The proxy was given up; the text says why.
    GaveUp(String),
}

#[derive(Clone, Default, Serialize, Deserialize)]
pub(crate) struct Measured {
    pub(crate) packets: BTreeMap<Measure, Packets>,
    pub(crate) start: Option<Start>,
    pub(crate) changes: Option<Changes>,
    pub(crate) churn: Vec<Churn>,
    /// The agent's processor time while nothing changes, in percent of one processor.
    #[serde(default)]
    pub(crate) idle: Option<f64>,
    /// How long portolan's commands take: the least and the median time, in milliseconds.
    #[serde(default)]
    pub(crate) commands: Vec<(String, [f64; 2])>,
}

/// Times of one operation through a service, compared with direct ones.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Packets {
    /// The rate by service divided by the direct rate; 1 is as fast as direct.
    pub(crate) ratio: Interval,
    /// Median time of one operation, in microseconds: directly, and by service.
    pub(crate) direct: f64,
    pub(crate) by_service: f64,
    /// Processor time of one operation, client and server together, in microseconds: directly, and
    /// by service.
    pub(crate) direct_processor: f64,
    pub(crate) by_service_processor: f64,
    /// p50, p99 and p99.9 of connect() in microseconds, directly and by service; None if the
    /// operation makes no connections.
    pub(crate) direct_connect: Option<[f64; 3]>,
    pub(crate) by_service_connect: Option<[f64; 3]>,
}

/// Figures of the proxy's start.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Start {
    /// Time from the proxy's start until the last service answered, in seconds.
    pub(crate) answered: f64,
    /// Processor time of the proxy until its syncs of then have ended, in seconds.
    pub(crate) processor: Option<f64>,
    /// The proxy's resident memory at that time, in MiB.
    pub(crate) resident: f64,
}

/// Latency from a write to the API until packets follow, in milliseconds: for a changed endpoint,
/// and for a new service.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Changes {
    pub(crate) endpoint: Latency,
    pub(crate) service: Latency,
}

#[derive(Clone, Copy, Default, Serialize, Deserialize)]
pub(crate) struct Latency {
    pub(crate) count: u32,
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    pub(crate) longest: f64,
}

impl Latency {
    pub(crate) fn of(samples: Vec<f64>) -> Self {
        let count = samples.len() as u32;
        let [p50, p99, longest] = quantiles(samples, [0.5, 0.99, 1.0]);
        Self {
            count,
            p50,
            p99,
            longest,
        }
    }
}

/// Figures measured while endpoints change all the time.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Churn {
    /// Changes a second: how many were intended, and how many the API server accepted (`written`).
    pub(crate) wanted: u32,
    pub(crate) written: f64,
    pub(crate) seconds: f64,
    /// The proxy's processor time meanwhile, in percent of one processor.
    pub(crate) processor: f64,
    /// Latency of changes to one more endpoint meanwhile, in milliseconds.
    pub(crate) latency: Latency,
    pub(crate) resident: f64,
}

impl Results {
    /// Returns the results saved in `file` if they are from the same machine with the same
    /// versions, else empty ones.
    pub(crate) fn resume(file: &Path, machine: String) -> Result<Self> {
        let fresh = |machine| Self {
            date: machine::today(),
            machine,
            cells: Vec::new(),
        };
        let Ok(text) = fs::read_to_string(file) else {
            return Ok(fresh(machine));
        };
        let earlier: Self = serde_json::from_str(&text).with_context(|| {
            format!(
                "read {}: remove it to measure everything anew",
                file.display()
            )
        })?;
        if earlier.machine == machine {
            Ok(earlier)
        } else {
            println!("the saved figures are from another machine or version, so they are not used");
            Ok(fresh(machine))
        }
    }

    pub(crate) fn find(&self, cell: &Cell) -> Option<&Outcome> {
        let mut cells = self.cells.iter();
        cells.find(|(of, _)| of == cell).map(|(_, outcome)| outcome)
    }

    /// Returns what was measured of a proxy on a node with these settings; None if nothing was or
    /// the proxy was given up.
    pub(crate) fn measured(&self, (setup, proxy): Row, services: u32) -> Option<&Measured> {
        let cell = Cell {
            services,
            setup,
            proxy,
        };
        match self.find(&cell)? {
            Outcome::Measured(measured) => Some(measured),
            Outcome::GaveUp(_) => None,
        }
    }

    /// Returns the rows of all tables.
    pub(crate) fn rows(&self) -> BTreeSet<Row> {
        let cells = self.cells.iter();
        cells.map(|(cell, _)| (cell.setup, cell.proxy)).collect()
    }

    /// Returns the numbers of services that were measured, ascending.
    pub(crate) fn services(&self) -> Vec<u32> {
        let all: BTreeSet<_> = self.cells.iter().map(|(cell, _)| cell.services).collect();
        all.into_iter().collect()
    }

    /// Adds a cell's outcome, and writes all results to `file`.
    pub(crate) fn add(&mut self, cell: Cell, outcome: Outcome, file: &Path) -> Result<()> {
        self.cells.retain(|(of, _)| *of != cell);
        self.cells.push((cell, outcome));
        self.save(file)
    }

    /// Writes all results to `file`.
    pub(crate) fn save(&self, file: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(self)? + "\n";
        let new = file.with_extension("new");
        fs::write(&new, text).with_context(|| format!("write {}", new.display()))?;
        fs::rename(&new, file).with_context(|| format!("replace {}", file.display()))
    }
}
