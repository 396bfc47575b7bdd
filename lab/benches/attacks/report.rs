// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The report on the attacks: a Markdown table for each attack, and the goals that each proxy
//! misses.

use std::{
    fmt::{self, Display, Formatter},
    fs,
    path::Path,
};

use anyhow::{Context, Result};
use lab::{attacks::Outcome, load::machine, node::topology::Plumbing};

/// One proxy's row in an attack's table: its figures and missed goals, or in `failed` why there are
/// none.
pub(crate) struct Row {
    proxy: &'static str,
    figures: Vec<(&'static str, String)>,
    missed: Vec<String>,
    failed: Option<String>,
}

impl Row {
    pub(crate) fn of(proxy: &'static str, outcome: Result<Box<dyn Outcome>>) -> Self {
        let (figures, missed, failed) = match outcome {
            Ok(outcome) => (outcome.figures(), outcome.missed(), None),
            Err(error) => (Vec::new(), Vec::new(), Some(format!("{error:#}"))),
        };
        Self {
            proxy,
            figures,
            missed,
            failed,
        }
    }
}

impl Display for Row {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.proxy)?;
        if let Some(reason) = &self.failed {
            write!(f, "; could not be attacked: {reason}")?;
        }
        for (what, seen) in &self.figures {
            write!(f, "; {what}: {seen}")?;
        }
        Ok(())
    }
}

pub(crate) struct Report {
    plumbing: Plumbing,
    quick: bool,
    attacks: Vec<(&'static str, &'static str, Vec<Row>)>,
}

impl Report {
    pub(crate) fn new(plumbing: Plumbing, quick: bool) -> Self {
        Self {
            plumbing,
            quick,
            attacks: Vec::new(),
        }
    }

    pub(crate) fn add(&mut self, attack: &'static str, goal: &'static str, rows: Vec<Row>) {
        self.attacks.push((attack, goal, rows));
    }

    pub(crate) fn write(&self, folder: &Path) -> Result<()> {
        fs::create_dir_all(folder).with_context(|| format!("make {}", folder.display()))?;
        let file = folder.join("attacks.md");
        fs::write(&file, self.to_string()).with_context(|| format!("write {}", file.display()))
    }
}

impl Display for Report {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "# Under attack

Written by `cargo xtask bench attacks{}`, {}: {} processors, Linux {}; portolan {}; pods joined by {}. Rates may be
compared within a table only.

Every proxy gets a new node for every attack. Clients and servers are pods and hosts outside on the packet path; clients
use the ports 1024 to 65535 and `tcp_tw_reuse=1`, so that they are not the limit. \"no proxy\" calls the pod itself.
Floods come from random sources: SYNs as fast as one processor sends them through the node, datagrams at 15 000 a second,
which the server answers.",
            if self.quick { " -- --quick" } else { "" },
            machine::today(),
            machine::processors(),
            machine::kernel(),
            env!("CARGO_PKG_VERSION"),
            self.plumbing.name(),
        )?;
        for (attack, goal, rows) in &self.attacks {
            writeln!(f, "\n## {attack}\n\nTo reach: {goal}.\n")?;
            let all = rows.iter().find(|row| !row.figures.is_empty());
            let columns: Vec<_> = all
                .map(|row| row.figures.iter().map(|(what, _)| *what).collect())
                .unwrap_or_default();
            writeln!(f, "| proxy | {} | missed |", columns.join(" | "))?;
            writeln!(f, "| --- |{} --- |", " ---: |".repeat(columns.len()))?;
            for row in rows {
                write!(f, "| {} |", row.proxy)?;
                for number in 0..columns.len() {
                    let seen = row.figures.get(number).map_or("–", |(_, seen)| seen);
                    write!(f, " {seen} |")?;
                }
                let missed = match &row.failed {
                    Some(reason) => reason.replace('\n', " "),
                    None if row.missed.is_empty() => "reached".to_owned(),
                    None => row.missed.join("; "),
                };
                writeln!(f, " {missed} |")?;
            }
        }
        Ok(())
    }
}
