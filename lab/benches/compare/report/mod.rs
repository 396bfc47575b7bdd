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

use crate::{
    goals::goals,
    results::{Outcome, Results},
    rows::{Row, Rows},
};

/// Writes the report into `folder` and returns it. The pictures that it refers to are in the same
/// folder.
pub(crate) fn write(results: &Results, folder: &Path) -> Result<String> {
    let report = Report {
        rows: Rows::new(results),
    };
    let (file, text) = (folder.join("README.md"), report.text()?);
    fs::write(&file, &text).with_context(|| format!("write {}", file.display()))?;
    Ok(text)
}

/// Figures that others have published about proxies that cannot run here.
const PUBLISHED: &str = include_str!("published.md");

struct Report<'a> {
    rows: Rows<'a>,
}

impl Report<'_> {
    fn text(&self) -> Result<String> {
        let mut text = String::new();
        self.introduction(&mut text)?;
        self.about_goals(&mut text)?;
        self.about_packets(&mut text)?;
        self.about_frames(&mut text)?;
        self.about_changes(&mut text)?;
        self.about_churn(&mut text)?;
        self.about_failures(&mut text)?;
        text += PUBLISHED;
        Ok(text)
    }

    fn introduction(&self, text: &mut String) -> Result<()> {
        let machine = &self.rows.results.machine;
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
        for goal in goals(self.rows.results) {
            let missed = goal.missed.as_deref().unwrap_or("reached");
            writeln!(
                text,
                "| {} | {} | {} | {missed} |",
                goal.what, goal.wanted, goal.seen
            )?;
        }
        Ok(())
    }

    fn about_failures(&self, text: &mut String) -> Result<()> {
        let gave_up: Vec<_> = self
            .rows
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
        let mut all = self.rows.rows.iter();
        let mut has_any = |row: &Row| {
            self.rows
                .services
                .iter()
                .any(|n| figure(*row, *n).is_some())
        };
        if !all.any(&mut has_any) {
            return Ok(());
        }
        write!(text, "\n### {heading}\n\n| node | proxy |")?;
        for services in &self.rows.services {
            write!(text, " {} |", grouped(*services))?;
        }
        writeln!(
            text,
            "\n| --- | --- |{}",
            " ---: |".repeat(self.rows.services.len())
        )?;
        for row in &self.rows.rows {
            let figures: Vec<_> = self
                .rows
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
}

/// Returns the number with a space between thousands.
fn grouped(number: u32) -> String {
    if number < 1_000 {
        number.to_string()
    } else {
        format!("{} {:03}", grouped(number / 1_000), number % 1_000)
    }
}
