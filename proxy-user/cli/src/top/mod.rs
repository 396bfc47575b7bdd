// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `portolan top`: shows the traffic of each service port or backend, and its rates; live on a
//! terminal, otherwise once.

mod item;
mod live;
mod looks;
mod programs;
mod reasons;
mod rows;
mod screen;
mod view;

use std::{
    io::{IsTerminal, Write},
    time::Duration,
};

use anyhow::Result;
use serde::Serialize;

use self::{
    looks::{Looks, Sample},
    programs::ProgramRow,
    reasons::ReasonRow,
    rows::TopRow,
    view::{Rows, Shown, View},
};
use super::{
    BadInput, Pins,
    args::{Look, Select, no_headings, seconds},
    format::{Format, document},
    list::{again, is_heading, no_column},
    render::Column,
    table::table,
    terminal::Page,
};

/// The time between two samples, unless `--interval` is given.
const INTERVAL: Duration = Duration::from_secs(2);

/// Arguments of `portolan top`.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct TopArgs {
    #[command(flatten)]
    pub pins: Pins,
    #[command(flatten)]
    pub select: Select,
    /// A line for each backend instead of one for each service port.
    #[arg(long)]
    pub backends: bool,
    /// A line for each reason for which a service port has refused something.
    #[arg(long, conflicts_with = "backends")]
    pub reasons: bool,
    /// Show it once: what was counted so far, or with --interval what comes in that time. So
    /// without a terminal, and in every format but a table.
    #[arg(long)]
    pub once: bool,
    /// Seconds between two looks; 2 unless given.
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub interval: Option<Duration>,
    /// Sort by this column, the greatest first. Otherwise by what moves.
    #[arg(long, value_name = "COLUMN")]
    pub sort_by: Option<String>,
    /// The other way round.
    #[arg(long)]
    pub reverse: bool,
    /// Leave out the table's headings and the line above them.
    #[arg(long)]
    pub no_headers: bool,
    /// Show at most so many rows.
    #[arg(long, value_name = "N", conflicts_with = "count")]
    pub limit: Option<usize>,
    /// Only count the rows.
    #[arg(long, conflicts_with_all = ["interval", "sort_by", "reverse", "no_headers"])]
    pub count: bool,
    /// table, wide (every column, never cut), json, yaml, name, or jsonpath=EXPRESSION over the
    /// JSON.
    #[arg(long, short, value_name = "FORMAT", default_value = "table")]
    pub output: Format,
}

impl TopArgs {
    fn shown(&self) -> Shown {
        match (self.backends, self.reasons) {
            (true, _) => Shown::Backends,
            (_, true) => Shown::Reasons,
            _ => Shown::Services,
        }
    }
    /// Returns whether the flags ask for one output instead of a live screen.
    fn is_for_scripts(&self) -> bool {
        let is_table = matches!(self.output, Format::Table | Format::Wide);
        self.once || self.count || self.no_headers || self.limit.is_some() || !is_table
    }
}

/// The document that `top` prints as JSON, YAML or through a JSONPath.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Document<'a> {
    /// The seconds that the rates are for; None if there are no rates.
    #[serde(skip_serializing_if = "Option::is_none")]
    seconds: Option<f64>,
    items: &'a [TopRow],
    #[serde(skip_serializing_if = "Vec::is_empty")]
    reasons: Vec<ReasonRow>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    programs: Vec<ProgramRow>,
}

/// Shows the rows live on a terminal, else prints them once.
pub(super) fn run(args: &TopArgs) -> Result<()> {
    args.select.check()?;
    if args.no_headers && !matches!(args.output, Format::Table | Format::Wide) {
        return Err(no_headings().into());
    }
    let shown = args.shown();
    let sorted_by = args.sort_by.as_deref().map(|by| heading(shown, by));
    let view = View::new(shown, sorted_by.transpose()?, args.reverse);
    let is_terminal = std::io::stdout().is_terminal();
    let interval = args.interval.unwrap_or(INTERVAL);
    let is_live = is_terminal && !args.is_for_scripts();
    if is_live && std::io::stdin().is_terminal() && args.output == Format::Table {
        return live::run(args, view, interval);
    }
    print(args, &view, interval, is_live)
}

/// Prints the rows; again and again if the output is a terminal, but the input is not.
fn print(args: &TopArgs, view: &View, interval: Duration, is_live: bool) -> Result<()> {
    let with_rates = is_live || args.interval.is_some();
    // The kernel measures the run times of programs as long as this value exists.
    let _measuring = with_rates.then(|| {
        let measuring = programs::measure();
        measuring.inspect_err(|why| eprintln!("portolan top: {why}"))
    });
    let take = || Sample::take(&args.pins.pin_dir, &args.select, with_rates);
    let mut before = None;
    if with_rates && !is_live {
        before = Some(take()?);
        std::thread::sleep(interval);
    }
    let look = Look {
        output: args.output.clone(),
        watch: is_live,
        interval,
    };
    again(&look, |out, page| {
        let mut looks = Looks {
            now: take()?,
            before: before.take(),
        };
        let rows = view.rows(&looks, &args.select);
        write(out, page, args, rows, &mut looks)?;
        before = Some(looks.now);
        Ok(())
    })
}

/// Writes the rows in the output format of `args`.
fn write(
    out: &mut impl Write,
    page: &Page,
    args: &TopArgs,
    rows: Rows,
    looks: &mut Looks,
) -> Result<()> {
    if args.count {
        writeln!(out, "{}", rows.len())?;
        return Ok(());
    }
    let limit = args.limit.unwrap_or(usize::MAX);
    let page = match args.output {
        Format::Wide => page.endless(),
        _ => *page,
    };
    match (&args.output, rows) {
        (Format::Table | Format::Wide, rows) => {
            let programs = looks.programs();
            let page = Screenful {
                page,
                args,
                programs,
            };
            let has_rates = looks.before.is_some();
            match rows {
                Rows::Top(rows) => {
                    page.draw(out, &rows::columns(args.backends, has_rates), &rows)?;
                }
                Rows::Reasons(rows) => page.draw(out, reasons::COLUMNS, &rows)?,
                Rows::Programs(rows) => page.draw(out, programs::COLUMNS, &rows)?,
            }
        }
        (Format::Name, Rows::Top(rows)) => rows
            .iter()
            .take(limit)
            .try_for_each(|row| writeln!(out, "{}", row.name()))?,
        (Format::Name, Rows::Reasons(rows)) => rows
            .iter()
            .take(limit)
            .try_for_each(|row| writeln!(out, "outcome/{}", row.reason))?,
        (format, rows) => {
            let (mut items, mut reasons) = match rows {
                Rows::Top(rows) => (rows, looks.reasons(&args.select)),
                Rows::Reasons(rows) => (Vec::new(), rows),
                Rows::Programs(_) => Default::default(),
            };
            items.truncate(limit);
            if args.reasons {
                reasons.truncate(limit);
            }
            let page = Document {
                seconds: looks.seconds(),
                items: &items,
                reasons,
                programs: looks.programs(),
            };
            document(out, format, &page)?;
        }
    }
    Ok(())
}

/// Returns the heading of the column that the user's `wanted` means.
fn heading(shown: Shown, wanted: &str) -> Result<&'static str, BadInput> {
    let headings = shown.headings(true);
    let found = headings.iter().find(|one| is_heading(one, wanted));
    found.copied().ok_or_else(|| no_column(wanted, &headings))
}

/// What a screen shows besides its rows: the page, the arguments, and the table of programs.
struct Screenful<'a> {
    page: Page,
    args: &'a TopArgs,
    programs: Vec<ProgramRow>,
}

impl Screenful<'_> {
    /// Draws a screen: a line that says what is not counted, the table of programs, and the rows.
    fn draw<R>(
        &self,
        out: &mut impl Write,
        columns: &[Column<R>],
        rows: &[R],
    ) -> std::io::Result<()> {
        let rows = &rows[..rows.len().min(self.args.limit.unwrap_or(usize::MAX))];
        let headings = !self.args.no_headers;
        if headings {
            writeln!(
                out,
                "Shown: {}. Connections made at sockets count, their packets do not.",
                rows.len()
            )?;
        }
        if !self.programs.is_empty() && headings {
            table(out, &self.page, programs::COLUMNS, true, &self.programs)?;
            writeln!(out)?;
        }
        let taken = 5 + self.programs.len();
        let room = self.page.height.filter(|_| !self.args.is_for_scripts());
        let room = room.map_or(usize::MAX, |height| height.saturating_sub(taken).max(1));
        let shown = rows.len().min(room);
        table(out, &self.page, columns, headings, &rows[..shown])?;
        if shown < rows.len() {
            writeln!(out, "({} more)", rows.len() - shown)?;
        }
        Ok(())
    }
}
