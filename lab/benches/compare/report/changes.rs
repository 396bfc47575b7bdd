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
when a connection is answered by the pod that it names.

### From the proxy's start until the last service answers, s"
        )?;
        let start = |row, services| self.rows.measured(row, services)?.start.as_ref();
        self.table(text, |row, services| {
            Some(format!("{:.2}", start(row, services)?.answered))
        })?;
        writeln!(text, "\n### What it says its syncs took until then, s")?;
        self.table(text, |row, services| {
            Some(format!("{:.3}", start(row, services)?.synced))
        })?;
        writeln!(text, "\n### Processor time until then, s")?;
        self.table(text, |row, services| {
            Some(format!("{:.2}", start(row, services)?.processor?))
        })?;
        writeln!(text, "\n### Resident then, MiB")?;
        self.table(text, |row, services| {
            Some(format!("{:.0}", start(row, services)?.resident))
        })?;
        let changes = |row, services| self.rows.measured(row, services)?.changes.as_ref();
        writeln!(text, "\n### A changed endpoint, ms: p50 / p99 (changes)")?;
        self.table(text, |row, services| {
            Some(show(changes(row, services)?.endpoint))
        })?;
        writeln!(text, "\n### A new service, ms: p50 / p99 (services)")?;
        self.table(text, |row, services| {
            Some(show(changes(row, services)?.service))
        })?;
        writeln!(
            text,
            "\n### What the proxy says that a sync took meanwhile, ms"
        )?;
        self.table(text, |row, services| {
            Some(format!("{:.2}", changes(row, services)?.sync))
        })
    }

    pub(super) fn about_churn(&self, text: &mut String) -> Result<()> {
        writeln!(
            text,
            "
## Endpoints that change all the time

Slices of 100 services are written through the API server, for the wanted 1 000 a second ten endpoints at once. Meanwhile
one more service's endpoint is changed again and again: how long until packets follow.

| services | proxy | changes/s wanted | written | s | processor, % of one | followed after, ms: p50 / p99 (changes) | longest | resident, MiB |
| ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
        )?;
        for (cell, outcome) in &self.rows.results.cells {
            let Outcome::Measured(measured) = outcome else {
                continue;
            };
            for churn in &measured.churn {
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
