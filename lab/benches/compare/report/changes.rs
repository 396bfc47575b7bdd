// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The report's sections about changes: the time until packets follow a single change, alone and
//! among many others.

use std::fmt::Write;

use anyhow::Result;

use super::{Report, grouped};
use crate::results::{Latency, Outcome};

impl Report<'_> {
    pub(super) fn about_changes(&self, text: &mut String) -> Result<()> {
        writeln!(
            text,
            "
## From the API to the packets

Every service has two endpoints. The API server is on the same processors; its own work is in these times. A change is over
when a connection is answered by the pod that it names."
        )?;
        let start = |row, services| self.results.measured(row, services)?.start.as_ref();
        let heading = "From the proxy's start until the last service answers, s";
        self.table(text, heading, |row, services| {
            Some(format!("{:.2}", start(row, services)?.answered))
        })?;
        let heading = "What it says its syncs took until then, s";
        self.table(text, heading, |row, services| {
            Some(format!("{:.3}", start(row, services)?.synced))
        })?;
        self.table(text, "Processor time until then, s", |row, services| {
            Some(format!("{:.2}", start(row, services)?.processor?))
        })?;
        self.table(text, "Resident then, MiB", |row, services| {
            Some(format!("{:.0}", start(row, services)?.resident))
        })?;
        let changes = |row, services| self.results.measured(row, services)?.changes.as_ref();
        let heading = "A changed endpoint, ms: p50 / p99 (changes)";
        self.table(text, heading, |row, services| {
            Some(show(changes(row, services)?.endpoint))
        })?;
        let heading = "A new service, ms: p50 / p99 (services)";
        self.table(text, heading, |row, services| {
            Some(show(changes(row, services)?.service))
        })?;
        let heading = "What the proxy says that a sync took meanwhile, ms";
        self.table(text, heading, |row, services| {
            Some(format!("{:.2}", changes(row, services)?.sync))
        })?;
        let heading = "Processor time while nothing changes, % of one";
        self.table(text, heading, |row, services| {
            Some(format!(
                "{:.2}",
                self.results.measured(row, services)?.idle?
            ))
        })?;
        let heading = "Commands, ms: the least and the median time";
        self.table(text, heading, |row, services| {
            let commands = &self.results.measured(row, services)?.commands;
            let shown = commands
                .iter()
                .map(|(name, [least, median])| format!("`{name}` {least:.0} {median:.0}"));
            (!commands.is_empty()).then(|| shown.collect::<Vec<_>>().join(", "))
        })
    }

    pub(super) fn about_churn(&self, text: &mut String) -> Result<()> {
        let cells = self.results.cells.iter();
        let measured = cells.filter_map(|(cell, outcome)| match outcome {
            Outcome::Measured(measured) => Some((cell, &measured.churn)),
            Outcome::GaveUp(_) => None,
        });
        let all: Vec<_> = measured.filter(|(_, churn)| !churn.is_empty()).collect();
        if all.is_empty() {
            return Ok(());
        }
        writeln!(
            text,
            "
## Endpoints that change all the time

Slices of 100 services are written through the API server, for the wanted 1 000 a second ten endpoints at once. Meanwhile
one more service's endpoint is changed again and again: how long until packets follow.

| services | proxy | changes/s wanted | written | s | processor, % of one | followed after, ms: p50 / p99 (changes) | longest | resident, MiB |
| ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
        )?;
        for (cell, churn) in all {
            for churn in churn {
                writeln!(
                    text,
                    "| {} | {} | {} | {:.0} | {:.0} | {:.1} | {} | {:.0} | {:.0} |",
                    grouped(cell.services),
                    cell.proxy.name(),
                    churn.wanted,
                    churn.written,
                    churn.seconds,
                    churn.processor,
                    show(churn.latency),
                    churn.latency.longest,
                    churn.resident,
                )?;
            }
        }
        Ok(())
    }
}

fn show(latency: Latency) -> String {
    format!(
        "{:.1} / {:.1} ({})",
        latency.p50, latency.p99, latency.count
    )
}
