// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The report: Markdown tables of everything that was measured. From `Results` alone.

use std::{
    fmt::{Display, Write},
    fs,
    path::Path,
};

use anyhow::{Context, Result};

use crate::{
    goals::goals,
    pictures,
    plan::{Measure, Proxy},
    results::{Latency, Measured, Outcome, Packets, Results},
};
use lab::load::setup::Setup;

/// One proxy on one kind of node.
pub(crate) type Row = (Setup, Proxy);

pub(crate) fn write(results: &Results, folder: &Path) -> Result<()> {
    let report = Report::new(results);
    let file = folder.join("README.md");
    fs::write(&file, report.text()?).with_context(|| format!("write {}", file.display()))?;
    pictures::write(&report, folder)
}

/// The figures by row and number of services.
pub(crate) struct Report<'a> {
    results: &'a Results,
    pub(crate) services: Vec<u32>,
    pub(crate) rows: Vec<Row>,
}

impl<'a> Report<'a> {
    fn new(results: &'a Results) -> Self {
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

    /// A table with a column for each number of services; rows without any figure are left out.
    fn table<T: Display>(
        &self,
        text: &mut String,
        figure: impl Fn(Row, u32) -> Option<T>,
    ) -> Result<()> {
        write!(text, "\n| node | proxy |")?;
        for services in &self.services {
            write!(text, " {} |", grouped(*services))?;
        }
        writeln!(
            text,
            "\n| --- | --- |{}",
            " ---: |".repeat(self.services.len())
        )?;
        for row in &self.rows {
            let figures: Vec<_> = self
                .services
                .iter()
                .map(|services| figure(*row, *services))
                .collect();
            if figures.iter().all(Option::is_none) {
                continue;
            }
            write!(text, "| {} | {} |", row.0.name(), row.1.name())?;
            for figure in figures {
                match figure {
                    Some(figure) => write!(text, " {figure} |")?,
                    None => text.push_str(" – |"),
                }
            }
            text.push('\n');
        }
        Ok(())
    }

    fn text(&self) -> Result<String> {
        let mut text = String::new();
        self.introduction(&mut text)?;
        self.about_goals(&mut text)?;
        self.about_packets(&mut text)?;
        self.about_changes(&mut text)?;
        self.about_churn(&mut text)?;
        self.about_failures(&mut text)?;
        Ok(text)
    }

    fn introduction(&self, text: &mut String) -> Result<()> {
        let machine = &self.results.machine;
        writeln!(
            text,
            "# The performance lab's report

Written by `cargo xtask lab`, {}: {} processors of {}, Linux {}; portolan {}, kube-proxy ({}), {}, {};
pods joined by {}; {} rounds. Times of two runs must not be compared with each other; ratios may.

![short connections to the last service](connections.svg)

![a new service](new-service.svg)

\"bare\" is a node without any netfilter rule and with br_netfilter off; \"netfilter\" one as kube-proxy needs it, br_netfilter on
and conntrack active. Direct is always the pod's own address on a like node without a proxy, asked in the same round, the
two in turn first; everything on one processor but \"many clients at once\". A ratio is that of the rates, 1 being as fast
as direct: the median over the rounds and its 95 % bootstrap interval. A round whose direct figure is more than 20 % off the
median is run again. \"0.1 s\" is kube-proxy with a minSyncPeriod of 0.1 s instead of its default of 1 s.",
            machine.date,
            machine.processors,
            machine.processor,
            machine.kernel,
            machine.portolan,
            machine.kube_proxy,
            machine.nft,
            machine.iptables,
            machine.plumbing,
            machine.rounds,
        )?;
        Ok(())
    }

    fn about_goals(&self, text: &mut String) -> Result<()> {
        writeln!(
            text,
            "\n## To reach\n\n| goal | wanted | seen | missed |\n| --- | --- | --- | --- |"
        )?;
        for goal in goals(self.results) {
            let missed = goal.missed.as_deref().unwrap_or("reached");
            writeln!(
                text,
                "| {} | {} | {} | {missed} |",
                goal.what, goal.wanted, goal.seen
            )?;
        }
        Ok(())
    }

    fn about_packets(&self, text: &mut String) -> Result<()> {
        writeln!(text, "\n## Connections and packets, beside direct")?;
        for measure in Measure::ALL {
            writeln!(text, "\n### {} ({})", measure.name(), measure.unit())?;
            self.table(text, |row, services| {
                let packets = self.packets(row, services, measure)?;
                let rate = grouped((1e6 / packets.by_service) as u32);
                Some(format!("{} ({rate})", packets.ratio))
            })?;
        }
        writeln!(
            text,
            "\n### Short connections to the last service, beside direct on a bare node\n\nThe direct figure is of another minute."
        )?;
        self.table(text, |row, services| {
            let bare = (Setup::Bare, Proxy::Direct);
            let direct = self.packets(bare, services, Measure::LastService)?;
            let packets = self.packets(row, services, Measure::LastService)?;
            Some(format!("{:.3}", direct.direct / packets.by_service))
        })?;
        writeln!(
            text,
            "\n### connect() to the last service, µs: p50 / p99 / p99.9, in brackets direct"
        )?;
        self.table(text, |row, services| {
            let packets = self.packets(row, services, Measure::LastService)?;
            let show = |[a, b, c]: [f64; 3]| format!("{a:.1} / {b:.1} / {c:.0}");
            let (by_service, direct) = (packets.by_service_connect?, packets.direct_connect?);
            Some(format!("{} ({})", show(by_service), show(direct)))
        })?;
        writeln!(
            text,
            "\n### Processor time of a short connection to the last service, both ends, µs, in brackets direct"
        )?;
        self.table(text, |row, services| {
            let packets = self.packets(row, services, Measure::LastService)?;
            Some(format!(
                "{:.1} ({:.1})",
                packets.by_service_processor, packets.direct_processor
            ))
        })?;
        let again: u32 = self.all_packets().map(|packets| packets.again).sum();
        let count = self.all_packets().count() as u32 * self.results.machine.rounds;
        writeln!(
            text,
            "\n{again} of {} rounds were run again.",
            count + again
        )?;
        Ok(())
    }

    fn all_packets(&self) -> impl Iterator<Item = &'a Packets> {
        self.results
            .cells
            .iter()
            .filter_map(|(_, outcome)| match outcome {
                Outcome::Measured(measured) => Some(measured.packets.values()),
                Outcome::GaveUp(_) => None,
            })
            .flatten()
    }

    fn about_changes(&self, text: &mut String) -> Result<()> {
        writeln!(
            text,
            "
## From the API to the packets

Every service has two endpoints. The API server is on the same processors; its own work is in these times. A change is over
when a connection is answered by the pod that it names.

### From the proxy's start until the last service answers, s"
        )?;
        let start = |row, services| self.measured(row, services)?.start.as_ref();
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
        let changes = |row, services| self.measured(row, services)?.changes.as_ref();
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

    fn about_churn(&self, text: &mut String) -> Result<()> {
        writeln!(
            text,
            "
## Endpoints that change all the time

Slices of 100 services are written through the API server, for the wanted 1 000 a second ten endpoints at once. Meanwhile
one more service's endpoint is changed again and again: how long until packets follow.

| services | proxy | changes/s wanted | written | s | processor, % of one | followed after, ms: p50 / p99 (changes) | longest | resident, MiB |
| ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
        )?;
        for (cell, outcome) in &self.results.cells {
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

    fn about_failures(&self, text: &mut String) -> Result<()> {
        let gave_up: Vec<_> = self
            .results
            .cells
            .iter()
            .filter_map(|(cell, outcome)| match outcome {
                Outcome::GaveUp(reason) => Some((cell, reason)),
                Outcome::Measured(_) => None,
            })
            .collect();
        if gave_up.is_empty() {
            return Ok(());
        }
        writeln!(text, "\n## Who did not finish\n")?;
        for (cell, reason) in gave_up {
            writeln!(
                text,
                "- {} with {} services: {reason}",
                cell.proxy.name(),
                grouped(cell.services)
            )?;
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

/// With a space between thousands.
fn grouped(number: u32) -> String {
    if number < 1_000 {
        number.to_string()
    } else {
        format!("{} {:03}", grouped(number / 1_000), number % 1_000)
    }
}
