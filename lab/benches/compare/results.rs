// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The results: stored in a file after every cell, so that an interrupted run can continue.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::{
    machine::{Machine, today},
    plan::{Cell, Measure, Proxy},
};
use lab::load::{
    setup::Setup,
    statistics::{Interval, quantiles},
};

/// The results of a run, finished or not.
#[derive(Default, Serialize, Deserialize)]
pub(crate) struct Results {
    pub(crate) machine: Machine,
    /// Cells in the order in which they were measured.
    pub(crate) cells: Vec<(Cell, Outcome)>,
    /// Empty until live frames were measured.
    #[serde(default)]
    pub(crate) live: Vec<Live>,
}

/// Live frames through a node port to another node.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Live {
    pub(crate) setup: Setup,
    pub(crate) proxy: Proxy,
    pub(crate) flows: u32,
    /// The median of frames a second.
    pub(crate) rate: f64,
    pub(crate) of_nftables: Interval,
}

impl Live {
    /// What `flows` counts.
    pub(crate) const fn unit(&self) -> &'static str {
        if self.flows == 1 { "flow" } else { "flows" }
    }
}

#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Outcome {
    Measured(Box<Measured>),
    /// Given up, with the reason.
    GaveUp(String),
}

#[derive(Clone, Default, Serialize, Deserialize)]
pub(crate) struct Measured {
    pub(crate) packets: BTreeMap<Measure, Packets>,
    pub(crate) start: Option<Start>,
    pub(crate) changes: Option<Changes>,
    pub(crate) churn: Vec<Churn>,
}

/// Operations through a service, compared with direct ones.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Packets {
    /// The ratio of the rates; 1 is as fast as direct.
    pub(crate) ratio: Interval,
    /// Median time of one operation, in microseconds.
    pub(crate) direct: f64,
    pub(crate) by_service: f64,
    /// Processor time of one operation at both ends, in microseconds.
    pub(crate) direct_processor: f64,
    pub(crate) by_service_processor: f64,
    /// p50, p99 and p99.9 of connect() in microseconds, where the operation makes connections.
    pub(crate) direct_connect: Option<[f64; 3]>,
    pub(crate) by_service_connect: Option<[f64; 3]>,
    /// Rounds that were run again because the direct figure was far from its median.
    pub(crate) again: u32,
}

/// Figures of the proxy's start.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Start {
    /// Time until the last service answered, in seconds.
    pub(crate) answered: f64,
    /// Time that the proxy's syncs took until then, as it reports it, in seconds.
    pub(crate) synced: f64,
    /// Processor time until the end of that sync, in seconds.
    pub(crate) processor: Option<f64>,
    /// Resident memory at that time, in MiB.
    pub(crate) resident: f64,
}

/// Time from a write to the API until packets follow, in milliseconds.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Changes {
    pub(crate) endpoint: Latency,
    pub(crate) service: Latency,
    /// Mean time of a sync during these changes, as the proxy reports it, in milliseconds.
    pub(crate) sync: f64,
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

/// Figures with endpoints that change all the time.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Churn {
    /// Changes a second: how many were intended, and how many the API server accepted.
    pub(crate) wanted: u32,
    pub(crate) written: f64,
    pub(crate) seconds: f64,
    /// The proxy's processor time, in percent of one processor.
    pub(crate) processor: f64,
    /// Latency of a change to one more endpoint during the churn.
    pub(crate) latency: Latency,
    pub(crate) resident: f64,
}

impl Results {
    /// The results of an earlier run, if that was on the same machine with the same versions.
    pub(crate) fn resume(file: &Path, machine: Machine) -> Result<Self> {
        let fresh = |machine| Self {
            machine,
            cells: Vec::new(),
            live: Vec::new(),
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
        let same = Machine {
            date: earlier.machine.date.clone(),
            ..machine
        };
        if earlier.machine == same {
            Ok(earlier)
        } else {
            println!("the saved figures are from another machine or version, so they are not used");
            Ok(fresh(Machine {
                date: today(),
                ..same
            }))
        }
    }

    pub(crate) fn find(&self, cell: &Cell) -> Option<&Outcome> {
        let mut cells = self.cells.iter();
        cells.find(|(of, _)| of == cell).map(|(_, outcome)| outcome)
    }

    /// What was measured of a proxy on one kind of node.
    pub(crate) fn measured(&self, setup: Setup, proxy: Proxy, services: u32) -> Option<&Measured> {
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

    /// The numbers of services, ascending.
    pub(crate) fn services(&self) -> Vec<u32> {
        let all: BTreeSet<_> = self.cells.iter().map(|(cell, _)| cell.services).collect();
        all.into_iter().collect()
    }

    /// Adds a cell, and writes all results.
    pub(crate) fn add(&mut self, cell: Cell, outcome: Outcome, file: &Path) -> Result<()> {
        self.cells.retain(|(of, _)| *of != cell);
        self.cells.push((cell, outcome));
        self.save(file)
    }

    /// Writes all results.
    pub(crate) fn save(&self, file: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(self)? + "\n";
        let new = file.with_extension("new");
        fs::write(&new, text).with_context(|| format!("write {}", new.display()))?;
        fs::rename(&new, file).with_context(|| format!("replace {}", file.display()))
    }
}
