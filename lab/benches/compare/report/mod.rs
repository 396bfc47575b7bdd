// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Writes the report: Markdown tables of everything that was measured. From `Results` alone.

mod changes;
mod packets;

use std::{
    fmt::{Display, Write},
    fs,
    path::Path,
};

use anyhow::{Context, Result};

use crate::results::{Outcome, Results, Row};

/// Writes the report into `folder` and returns it. The pictures that it refers to are in the same
/// folder.
pub(crate) fn write(results: &Results, folder: &Path) -> Result<String> {
    let report = Report {
        results,
        services: results.services(),
    };
    let (file, text) = (folder.join("README.md"), report.text()?);
    fs::write(&file, &text).with_context(|| format!("write {}", file.display()))?;
    Ok(text)
}

/// Figures that others have published about proxies that cannot run here.
const PUBLISHED: &str = include_str!("published.md");

struct Report<'a> {
    results: &'a Results,
    services: Vec<u32>,
}

impl Report<'_> {
    fn text(&self) -> Result<String> {
        let mut text = String::new();
        self.introduction(&mut text)?;
        self.about_packets(&mut text)?;
        self.about_changes(&mut text)?;
        self.about_churn(&mut text)?;
        self.about_failures(&mut text)?;
        text += PUBLISHED;
        Ok(text)
    }

    fn introduction(&self, text: &mut String) -> Result<()> {
        writeln!(
            text,
            "# The performance lab's report

Written by `cargo xtask lab`, {}: {}. Times of two runs must not be compared with each other; ratios may.

![short connections to the last service](connections.svg)

![a new service](new-service.svg)

\"bare\" is a node without any netfilter rule and with br_netfilter off; \"netfilter\" one as kube-proxy needs it, br_netfilter on
and conntrack active. Direct is always the pod's own address on a like node without a proxy, asked in the same round, the
two in turn first; everything on one processor but \"many clients at once\". A ratio is that of the rates, 1 being as fast
as direct: the median over the rounds and its 95 % bootstrap interval. A round whose direct figure is more than 20 % off the
median is run again. \"0.1 s\" is kube-proxy with a minSyncPeriod of 0.1 s instead of its default of 1 s.",
            self.results.date, self.results.machine,
        )?;
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

    /// Writes a table with a row for each proxy and a column for each number of services. Rows
    /// without any figure are left out, and so is a table without rows.
    fn table<T: Display>(
        &self,
        text: &mut String,
        heading: &str,
        figure: impl Fn(Row, u32) -> Option<T>,
    ) -> Result<()> {
        let of_row = |row: Row| {
            let figures: Vec<_> = self.services.iter().map(|n| figure(row, *n)).collect();
            figures
                .iter()
                .any(Option::is_some)
                .then_some((row, figures))
        };
        let rows: Vec<_> = self.results.rows().into_iter().filter_map(of_row).collect();
        if rows.is_empty() {
            return Ok(());
        }
        write!(text, "\n### {heading}\n\n| node | proxy |")?;
        for services in &self.services {
            write!(text, " {} |", grouped(*services))?;
        }
        let lines = " ---: |".repeat(self.services.len());
        writeln!(text, "\n| --- | --- |{lines}")?;
        for ((setup, proxy), figures) in rows {
            write!(text, "| {} | {} |", setup.name(), proxy.name())?;
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
}

/// Returns the number with a space between thousands.
fn grouped(number: u32) -> String {
    if number < 1_000 {
        number.to_string()
    } else {
        format!("{} {:03}", grouped(number / 1_000), number % 1_000)
    }
}
