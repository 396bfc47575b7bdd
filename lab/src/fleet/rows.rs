// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The rows of the table of figures. Pure.

use super::figures::{Alone, Figures};

/// How to read a figure.
type Value = fn(&Figures) -> f64;

/// A row of the table: its heading, how to read it, and the number of decimals.
pub(super) struct Row {
    pub(super) heading: &'static str,
    pub(super) value: Value,
    decimals: usize,
    /// The server's value without any agent.
    pub(super) alone: Option<fn(&Alone) -> f64>,
}

const fn row(heading: &'static str, decimals: usize, value: Value) -> Row {
    Row {
        heading,
        value,
        decimals,
        alone: None,
    }
}

impl Row {
    /// Returns a row of no table.
    pub(super) const fn of(value: Value) -> Self {
        row("", 0, value)
    }
    const fn alone(self, alone: fn(&Alone) -> f64) -> Self {
        Self {
            alone: Some(alone),
            ..self
        }
    }
}

pub(super) const ROWS: [Row; 22] = [
    row("start of all: until the last has every object, s", 2, |f| {
        f.start.seconds
    }),
    row("start of all: server's processor time, s", 2, |f| {
        f.start.server_seconds
    }),
    row("start of all: processor time of an agent, ms", 1, |f| {
        f.start.agent_seconds * 1e3
    }),
    row("start of all: received by an agent, kB", 1, |f| {
        f.start.bytes_per_agent / 1e3
    }),
    row("connections of an agent", 2, |f| {
        f.start.connections_per_agent
    }),
    row("a change: received by an agent, bytes", 0, |f| {
        f.change.bytes_per_agent
    }),
    row("a change: server's processor time, ms", 2, |f| {
        f.change.server_milliseconds
    })
    .alone(|a| a.change_milliseconds),
    row("a change: processor time of an agent, µs", 0, |f| {
        f.change.agent_microseconds
    }),
    row("a change: until the last agent has it, p50, ms", 2, |f| {
        f.change.p50_milliseconds
    }),
    row("a change: until the last agent has it, p99, ms", 2, |f| {
        f.change.p99_milliseconds
    }),
    row(
        "server back: from its start until all are current, s",
        2,
        |f| f.outage.seconds,
    )
    .alone(|a| a.ready_seconds),
    row("server back: its processor time until then, s", 2, |f| {
        f.outage.server_seconds
    })
    .alone(|a| a.start_seconds),
    row("server back: received by an agent, kB", 1, |f| {
        f.outage.bytes_per_agent / 1e3
    }),
    row("server back: lists of services by an agent", 2, |f| {
        f.outage.lists("services")
    }),
    row("server back: lists of EndpointSlices by an agent", 2, |f| {
        f.outage.lists("endpointslices")
    }),
    row("server back: lists of nodes by an agent", 2, |f| {
        f.outage.lists("nodes")
    }),
    row("server back: lists of ServiceCIDRs by an agent", 2, |f| {
        f.outage.lists("servicecidrs")
    }),
    row("server back: answers 429 (too many requests)", 0, |f| {
        f.outage.refused(true)
    }),
    row("server back: other refusals, while it starts", 0, |f| {
        f.outage.refused(false)
    }),
    row("rolling restart: seconds", 2, |f| f.rolling.seconds),
    row("rolling restart: server's processor time, s", 2, |f| {
        f.rolling.server_seconds
    }),
    row(
        "rolling restart: longest until the last agent has a change, ms",
        0,
        |f| f.rolling.longest_milliseconds,
    ),
];

/// Figures that are above 0 if agents did what they are to do. Every agent has a connection of its
/// own, and a change comes to every one.
pub(super) const POSITIVE: [(&str, Value); 5] = [
    ("agents share connections", |f| {
        f.start.connections_per_agent - 0.99
    }),
    ("a change has no bytes", |f| f.change.bytes_per_agent),
    ("no agent listed after the server was back", |f| {
        f.outage.lists("endpointslices")
    }),
    ("the server was back at once", |f| f.outage.seconds),
    ("changes did not arrive during the rolling restart", |f| {
        f.rolling.longest_milliseconds
    }),
];

/// Returns a value with its row's decimals.
pub(super) fn shown(row: &Row, value: Option<f64>) -> String {
    value.map_or_else(String::new, |value| format!("{value:.*}", row.decimals))
}
