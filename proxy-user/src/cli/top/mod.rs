// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `portolan top`: what passes to each service port or backend, and how fast; live on a terminal, else once.

mod programs;
mod rows;

use std::{
    io::{IsTerminal, Write},
    time::{Duration, Instant},
};

use anyhow::Result;
use serde::Serialize;

use self::{
    programs::{ProgramRow, Programs},
    rows::{Before, COLUMNS, TopRow},
};
use super::{
    BadInput, Pins,
    args::{Of, Select, Show, seconds},
    format::{Format, document},
    list::again,
    render::Column,
    table::table,
    terminal::Page,
};
use crate::datapath::read::{Counted, Reader};

/// Between two looks, unless `--interval` says otherwise.
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
    /// Show it once: what was counted so far, or with --interval what comes in that time. So without a terminal, and in every format but a
    /// table.
    #[arg(long)]
    pub once: bool,
    /// Seconds between two looks; 2 unless given.
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub interval: Option<Duration>,
    /// Sort by this column, the greatest first. Otherwise by what moves.
    #[arg(long, value_name = "COLUMN")]
    pub sort_by: Option<String>,
    /// Show at most so many rows.
    #[arg(long, value_name = "N")]
    pub limit: Option<usize>,
    /// table, wide (every column, never cut), json, yaml, name, or jsonpath=EXPRESSION over the JSON.
    #[arg(long, short, value_name = "FORMAT", default_value = "table")]
    pub output: Format,
}

/// What `top` prints in the formats for programs.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Document<'a> {
    /// What rates are of; none where there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    seconds: Option<f64>,
    items: &'a [TopRow],
    #[serde(skip_serializing_if = "Vec::is_empty")]
    programs: Vec<ProgramRow>,
}

/// One look.
struct Sample {
    at: Instant,
    counted: Counted,
    programs: Programs,
}

/// Prints it once, or again and again.
pub(super) fn run(args: &TopArgs) -> Result<()> {
    args.select.check()?;
    let order = order(args.sort_by.as_deref())?;
    let is_table = matches!(args.output, Format::Table | Format::Wide);
    let is_live = !args.once && is_table && std::io::stdout().is_terminal();
    let with_rates = is_live || args.interval.is_some();
    // The kernel measures programs as long as this lives.
    let _measuring = with_rates.then(programs::measure).transpose();
    let interval = args.interval.unwrap_or(INTERVAL);
    let show = Show {
        output: args.output.clone(),
        watch: is_live,
        interval,
        ..Show::default()
    };
    let mut before = None;
    if with_rates && !is_live {
        before = Some(sample(&open(args)?, true)?);
        std::thread::sleep(interval);
    }
    again(&show, |out, page| {
        let reader = open(args)?;
        let sample = sample(&reader, with_rates)?;
        let (items, seconds) = items(args, &reader, &sample, before.as_ref(), order);
        let programs = before
            .as_ref()
            .map(|before| {
                sample
                    .programs
                    .since(&before.programs, sample.at - before.at)
            })
            .unwrap_or_default();
        match &args.output {
            Format::Table | Format::Wide => {
                let page = if args.output == Format::Wide {
                    page.endless()
                } else {
                    *page
                };
                draw(out, &page, args, &items, &programs, seconds.is_some())?;
            }
            Format::Name => items
                .iter()
                .try_for_each(|row| writeln!(out, "{}", row.name()))?,
            format => {
                let page = Document {
                    seconds,
                    items: &items,
                    programs,
                };
                document(out, format, &page)?;
            }
        }
        before = Some(sample);
        Ok(())
    })
}

fn open(args: &TopArgs) -> Result<Reader> {
    let reader = Reader::open(&args.pins.pin_dir)?;
    args.select.check_known(&reader)?;
    Ok(reader)
}

fn sample(reader: &Reader, programs: bool) -> Result<Sample> {
    Ok(Sample {
        at: Instant::now(),
        counted: reader.counted()?,
        programs: if programs {
            Programs::read(reader)
        } else {
            Programs::default()
        },
    })
}

/// The rows that are asked for, in order, and the time that their rates are of.
fn items(
    args: &TopArgs,
    reader: &Reader,
    sample: &Sample,
    before: Option<&Sample>,
    order: Option<&Column<TopRow>>,
) -> (Vec<TopRow>, Option<f64>) {
    let before = before.map(|before| Before {
        counted: &before.counted,
        seconds: (sample.at - before.at).as_secs_f64(),
    });
    let names = reader.service_ports();
    let mut items = rows::rows(&sample.counted, before.as_ref(), &names, args.backends);
    items.retain(|row| {
        let of = Of {
            service: &row.service,
            port_name: &row.port_name,
            port: Some(row.port),
        };
        args.select.wants(of, row.protocol, row.endpoint.as_slice())
    });
    rows::sort(&mut items, order);
    items.truncate(args.limit.unwrap_or(usize::MAX));
    (items, before.map(|before| before.seconds))
}

/// The column to sort by.
fn order(wanted: Option<&str>) -> Result<Option<&'static Column<TopRow>>, BadInput> {
    let Some(wanted) = wanted else {
        return Ok(None);
    };
    let found = COLUMNS
        .iter()
        .find(|one| one.heading.eq_ignore_ascii_case(wanted));
    found.map(Some).ok_or_else(|| {
        let all: Vec<_> = COLUMNS
            .iter()
            .map(|one| one.heading.to_lowercase())
            .collect();
        BadInput(format!(
            "--sort-by: there is no column {wanted:?}; use one of {}",
            all.join(", ")
        ))
    })
}

/// Draws the screen: what is not counted, the programs, the rows.
fn draw(
    out: &mut impl Write,
    page: &Page,
    args: &TopArgs,
    items: &[TopRow],
    programs: &[ProgramRow],
    has_rates: bool,
) -> std::io::Result<()> {
    writeln!(
        out,
        "Shown: {}. Connections made at sockets count, their packets do not.",
        items.len()
    )?;
    if !programs.is_empty() {
        table(out, page, programs::COLUMNS, true, programs)?;
        writeln!(out)?;
    }
    let taken = 5 + programs.len();
    let room = page
        .height
        .map_or(usize::MAX, |height| height.saturating_sub(taken).max(1));
    let shown = items.len().min(room);
    let columns = rows::columns(args.backends, has_rates);
    table(out, page, &columns, true, &items[..shown])?;
    if shown < items.len() {
        writeln!(out, "({} more)", items.len() - shown)?;
    }
    Ok(())
}
