// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Writes the report: Markdown tables of everything that was measured. From `Results` alone.

use std::{fs, path::Path};

use anyhow::{Context, Result};
use lab::load::table::Table;

use crate::{
    plan::Measure,
    results::{Latency, Measured, Outcome, Results},
};

/// Writes the report into `folder` and returns it. The pictures that it refers to are in the same
/// folder.
pub(crate) fn write(results: &Results, folder: &Path) -> Result<String> {
    let (file, text) = (folder.join("README.md"), text(results));
    fs::write(&file, &text).with_context(|| format!("write {}", file.display()))?;
    Ok(text)
}

/// Figures that others have published about proxies that cannot run here.
const PUBLISHED: &str = include_str!("published.md");

/// The heading of a table, and what it shows of a proxy; None if that was not measured.
type Figure = (&'static str, fn(&Measured) -> Option<String>);

const OF_CONNECTIONS: [Figure; 2] = [
    (
        "connect() to the last service, µs: p50 / p99 / p99.9, in brackets direct",
        |of| {
            let packets = of.packets.get(&Measure::LastService)?;
            let show = |[a, b, c]: [f64; 3]| format!("{a:.1} / {b:.1} / {c:.0}");
            let (by_service, direct) = (packets.by_service_connect?, packets.direct_connect?);
            Some(format!("{} ({})", show(by_service), show(direct)))
        },
    ),
    (
        "Processor time of a short connection to the last service, both ends, µs, in brackets direct",
        |of| {
            let packets = of.packets.get(&Measure::LastService)?;
            let (by_service, direct) = (packets.by_service_processor, packets.direct_processor);
            Some(format!("{by_service:.1} ({direct:.1})"))
        },
    ),
];

const OF_CHANGES: [Figure; 7] = [
    (
        "From the proxy's start until the last service answers, s",
        |of| Some(format!("{:.2}", of.start.as_ref()?.answered)),
    ),
    ("Processor time until then, s", |of| {
        Some(format!("{:.2}", of.start.as_ref()?.processor?))
    }),
    ("Resident then, MiB", |of| {
        Some(format!("{:.0}", of.start.as_ref()?.resident))
    }),
    ("A changed endpoint, ms: p50 / p99 (changes)", |of| {
        Some(show(of.changes.as_ref()?.endpoint))
    }),
    ("A new service, ms: p50 / p99 (services)", |of| {
        Some(show(of.changes.as_ref()?.service))
    }),
    ("Processor time while nothing changes, % of one", |of| {
        Some(format!("{:.2}", of.idle?))
    }),
    ("Commands, ms: the least and the median time", |of| {
        let show = |(name, [least, median]): &(String, [f64; 2])| {
            format!("`{name}` {least:.0} {median:.0}")
        };
        let shown: Vec<_> = of.commands.iter().map(show).collect();
        (!shown.is_empty()).then(|| shown.join(", "))
    }),
];

fn text(results: &Results) -> String {
    let mut text = format!(
        "# The performance lab's report

Written by `cargo xtask lab`, {}: {}. Times of two runs must not be compared with each other; ratios may.

![short connections to the last service](connections.svg)

![a new service](new-service.svg)

\"bare\" is a node without any netfilter rule and with br_netfilter off; \"netfilter\" one as kube-proxy needs it, br_netfilter on
and conntrack active. Direct is always the pod's own address on a like node without a proxy, asked in the same round, the
two in turn first; everything on one processor but \"many clients at once\". A ratio is that of the rates, 1 being as fast
as direct: the median over the rounds and its 95 % bootstrap interval. A round whose direct figure is more than 20 % off the
median is run again. \"0.1 s\" is kube-proxy with a minSyncPeriod of 0.1 s instead of its default of 1 s.

## Connections and packets, beside direct
",
        results.date, results.machine,
    );
    for measure in Measure::ALL {
        let heading = format!("{} ({})", measure.name(), measure.unit());
        text += &table(results, &heading, |of| {
            let packets = of.packets.get(&measure)?;
            let rate = grouped((1e6 / packets.by_service) as u32);
            Some(format!("{} ({rate})", packets.ratio))
        });
    }
    for (heading, figure) in OF_CONNECTIONS {
        text += &table(results, heading, figure);
    }
    text += "
## From the API to the packets

Every service has two endpoints. The API server is on the same processors; its own work is in these times. A change is over
when a connection is answered by the pod that it names.
";
    for (heading, figure) in OF_CHANGES {
        text += &table(results, heading, figure);
    }
    text += &churn(results);
    text += &failures(results);
    text + PUBLISHED
}

/// Returns a table with a row for each proxy and a column for each number of services. Rows without
/// any figure are left out, and so is a table without rows.
fn table(results: &Results, heading: &str, figure: impl Fn(&Measured) -> Option<String>) -> String {
    let services = results.services();
    let titles = ["node", "proxy"].map(str::to_owned).into_iter();
    let mut table = Table::new(2, titles.chain(services.iter().copied().map(grouped)));
    for row in results.rows() {
        let of = |services: &u32| figure(results.measured(row, *services)?);
        let figures: Vec<_> = services.iter().map(of).collect();
        if figures.iter().any(Option::is_some) {
            let shown = |figure: Option<String>| figure.unwrap_or_else(|| "–".to_owned());
            let names = [row.0.name(), row.1.name()].map(str::to_owned).into_iter();
            table.row(names.chain(figures.into_iter().map(shown)));
        }
    }
    match table.is_empty() {
        true => String::new(),
        false => format!("\n### {heading}\n\n{table}"),
    }
}

fn churn(results: &Results) -> String {
    let mut table = Table::new(
        2,
        [
            "services",
            "proxy",
            "changes/s wanted",
            "written",
            "s",
            "processor, % of one",
            "followed after, ms: p50 / p99 (changes)",
            "longest",
            "resident, MiB",
        ],
    );
    for (cell, outcome) in &results.cells {
        let Outcome::Measured(measured) = outcome else {
            continue;
        };
        for churn in &measured.churn {
            table.row([
                grouped(cell.services),
                cell.proxy.name().to_owned(),
                churn.wanted.to_string(),
                format!("{:.0}", churn.written),
                format!("{:.0}", churn.seconds),
                format!("{:.1}", churn.processor),
                show(churn.latency),
                format!("{:.0}", churn.latency.longest),
                format!("{:.0}", churn.resident),
            ]);
        }
    }
    if table.is_empty() {
        return String::new();
    }
    format!(
        "
## Endpoints that change all the time

Slices of 100 services are written through the API server, for the wanted 1 000 a second ten endpoints at once. Meanwhile
one more service's endpoint is changed again and again: how long until packets follow.

{table}"
    )
}

fn failures(results: &Results) -> String {
    let gave_up = results
        .cells
        .iter()
        .filter_map(|(cell, outcome)| match outcome {
            Outcome::GaveUp(reason) => Some(format!("- {cell}: {reason}\n")),
            Outcome::Measured(_) => None,
        });
    let lines: String = gave_up.collect();
    match lines.is_empty() {
        true => lines,
        false => format!("\n## Who did not finish\n\n{lines}"),
    }
}

fn show(latency: Latency) -> String {
    let Latency {
        count, p50, p99, ..
    } = latency;
    format!("{p50:.1} / {p99:.1} ({count})")
}

/// Returns the number with a space between thousands.
fn grouped(number: u32) -> String {
    if number < 1_000 {
        number.to_string()
    } else {
        format!("{} {:03}", grouped(number / 1_000), number % 1_000)
    }
}
