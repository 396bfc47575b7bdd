// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The figures of fleets, and their medians over the rounds. Pure.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{
    audit::Requests,
    clients::Kind,
    rows::{POSITIVE, ROWS, Row},
};
use crate::load::statistics::median;

/// The figures of one fleet in one round.
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize)]
pub struct Figures {
    pub start: Start,
    pub change: Changes,
    pub outage: Outage,
    pub rolling: Rolling,
}

/// All agents start at once.
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize)]
pub struct Start {
    /// Until the last agent has every object.
    pub seconds: f64,
    pub server_seconds: f64,
    pub agent_seconds: f64,
    pub bytes_per_agent: f64,
    pub connections_per_agent: f64,
}

/// The full slice changes.
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize)]
pub struct Changes {
    pub bytes_per_agent: f64,
    pub server_milliseconds: f64,
    pub agent_microseconds: f64,
    /// Until the last agent has it: the median and the 99th percentile over the changes.
    pub p50_milliseconds: f64,
    pub p99_milliseconds: f64,
}

/// The server is killed and started again.
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize)]
pub struct Outage {
    /// From the new process's start until all agents have a change of a slice and one of a service
    /// that are written once it is ready.
    pub seconds: f64,
    /// Processor time of the new process until then, with its own start.
    pub server_seconds: f64,
    pub bytes_per_agent: f64,
    pub lists_per_agent: BTreeMap<String, f64>,
    /// Requests that were answered with another HTTP status than 200. Key: the status.
    pub refused: BTreeMap<u16, u64>,
}

/// The HTTP status of a server that has too much to do.
const TOO_MANY: u16 = 429;

impl Outage {
    /// Takes over the requests of `agents` agents.
    #[must_use]
    pub fn with_requests(mut self, requests: &Requests, agents: usize) -> Self {
        let each = |(kind, count): (&String, &u64)| (kind.clone(), *count as f64 / agents as f64);
        self.lists_per_agent = requests.lists.iter().map(each).collect();
        self.refused.clone_from(&requests.refused);
        self
    }

    pub(super) fn lists(&self, kind: &str) -> f64 {
        self.lists_per_agent.get(kind).copied().unwrap_or(0.0)
    }

    /// Returns the number of refused requests whose status is `TOO_MANY`, or is not.
    pub(super) fn refused(&self, too_many: bool) -> f64 {
        let all = self.refused.iter();
        let counted = all.filter(|(status, _)| (**status == TOO_MANY) == too_many);
        counted.map(|(_, count)| *count).sum::<u64>() as f64
    }
}

/// A tenth of the agents after another starts again, while the slice changes.
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize)]
pub struct Rolling {
    pub seconds: f64,
    pub server_seconds: f64,
    /// The longest time until the last agent had a change, those that were starting included.
    pub longest_milliseconds: f64,
}

/// What the server needs without any agent.
#[derive(Clone, Copy, PartialEq, Default, Debug, Serialize, Deserialize)]
pub struct Alone {
    pub change_milliseconds: f64,
    /// Processor time from its start until it is ready.
    pub start_seconds: f64,
    /// From its start until it is ready.
    pub ready_seconds: f64,
}

/// The rounds of a run.
#[derive(Clone, Default, Debug, Serialize, Deserialize)]
pub struct Rounds {
    pub alone: Vec<Alone>,
    pub fleets: Vec<(Kind, Figures)>,
}

impl Rounds {
    fn values(&self, row: &Row, kind: Kind) -> Vec<f64> {
        let own = self.fleets.iter().filter(|(of, _)| *of == kind);
        own.map(|(_, figures)| (row.value)(figures)).collect()
    }

    /// Returns the row's median over the rounds; None if there is none of this kind.
    pub(super) fn of(&self, row: &Row, kind: Kind) -> Option<f64> {
        let values = self.values(row, kind);
        (!values.is_empty()).then(|| median(&values))
    }

    /// Returns the server's own part of the row, without agents; None where it has none.
    pub(super) fn of_server(&self, row: &Row) -> Option<f64> {
        let alone = row.alone?;
        let values: Vec<_> = self.alone.iter().map(alone).collect();
        (!values.is_empty()).then(|| median(&values))
    }

    /// Returns the median over the rounds of a figure of one kind; NaN if there is none.
    pub(super) fn median(&self, kind: Kind, value: fn(&Figures) -> f64) -> f64 {
        self.of(&Row::of(value), kind).unwrap_or(f64::NAN)
    }

    /// Returns the server's processor time for a change with nobody who watches, and what each of
    /// `agents` agents adds, in milliseconds. None if they seem to add nothing: the server's
    /// garbage collections differ by more than a few agents cost.
    pub(super) fn change_of_server(&self, kind: Kind, agents: f64) -> Option<[f64; 2]> {
        let times: Vec<_> = self.alone.iter().map(|a| a.change_milliseconds).collect();
        let alone = median(&times);
        let added = self.median(kind, |figures| figures.change.server_milliseconds) - alone;
        (added > 0.0).then_some([alone, added / agents])
    }

    /// Returns an error's text for each kind that lacks a figure or has an impossible one.
    pub fn faults(&self, kinds: &[Kind]) -> Vec<(Kind, String)> {
        let mut faults = Vec::new();
        for kind in kinds {
            let mut fault = |text: &str| faults.push((*kind, text.to_owned()));
            for row in &ROWS {
                if !self.of(row, *kind).is_some_and(f64::is_finite) {
                    fault(&format!("no figure: {}", row.heading));
                }
            }
            for (what, value) in POSITIVE {
                // NaN is reported above.
                if self.median(*kind, value) <= 0.0 {
                    fault(what);
                }
            }
        }
        faults
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(seconds: f64, bytes: f64) -> Figures {
        let mut figures = Figures::default();
        figures.start.seconds = seconds;
        figures.start.connections_per_agent = 1.0;
        figures.change.bytes_per_agent = bytes;
        figures.outage.seconds = 1.0;
        figures.rolling.longest_milliseconds = 1.0;
        let requests = Requests {
            lists: [("endpointslices".to_owned(), 6)].into(),
            refused: [(429, 2), (500, 1), (403, 4)].into(),
            ..Requests::default()
        };
        figures.outage = figures.outage.clone().with_requests(&requests, 4);
        figures
    }

    #[test]
    fn a_row_is_the_median_over_the_rounds_of_one_kind() {
        let rounds = Rounds {
            alone: vec![Alone {
                change_milliseconds: 3.0,
                start_seconds: 5.0,
                ready_seconds: 6.0,
            }],
            fleets: vec![
                (Kind::Portolan, figures(1.0, 10.0)),
                (Kind::KubeProxy, figures(9.0, 90.0)),
                (Kind::Portolan, figures(2.0, 30.0)),
            ],
        };
        assert_eq!(rounds.of(&ROWS[0], Kind::Portolan), Some(1.5));
        assert_eq!(rounds.of(&ROWS[0], Kind::KubeProxy), Some(9.0));
        assert_eq!(rounds.of_server(&ROWS[0]), None);
        assert_eq!(rounds.of_server(&ROWS[6]), Some(3.0));
        assert_eq!(rounds.faults(&[Kind::Portolan, Kind::KubeProxy]), []);
    }

    #[test]
    fn lists_are_counted_for_each_agent() {
        let outage = figures(1.0, 1.0).outage;
        assert_eq!(
            (outage.lists("endpointslices"), outage.lists("nodes")),
            (1.5, 0.0)
        );
        assert_eq!([true, false].map(|it| outage.refused(it)), [2.0, 5.0]);
    }

    #[test]
    fn a_missing_kind_and_a_change_without_bytes_are_faults() {
        let rounds = Rounds {
            alone: Vec::new(),
            fleets: vec![(Kind::Portolan, figures(1.0, 0.0))],
        };
        let faults = rounds.faults(&[Kind::Portolan]);
        assert_eq!(
            faults,
            [(Kind::Portolan, "a change has no bytes".to_owned())]
        );
        assert!(rounds.faults(&[Kind::KubeProxy]).len() >= ROWS.len());
    }
}
