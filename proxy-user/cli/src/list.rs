// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Lists rows: sorts, limits, counts and writes them in every format, once or (`--watch`) again and
//! again. Called by the listing commands.

use std::{
    io::{self, BufWriter, Write},
    thread::sleep,
};

use anyhow::{Context, Result};
use datapath::read::Reader;
use serde::Serialize;

use super::{
    args::{ListArgs, Look, Show},
    format::{Format, document},
    frame::BadInput,
    table::{Column, table},
    terminal::Page,
};

/// A type whose values are the rows of a list.
pub(super) trait Row: Serialize + Ord + Sized + 'static {
    const COLUMNS: &'static [Column<Self>];
    /// Returns the columns that a table of these rows has.
    fn columns(_rows: &[Self]) -> Vec<&'static Column<Self>> {
        Self::COLUMNS.iter().collect()
    }
    /// The row's kind and name, as kubectl writes them, such as "service/shop/cart".
    fn name(&self) -> String;
}

/// Writes the rows in this format. `headings`: whether a table has headings.
fn write<R: Row>(
    out: &mut impl Write,
    page: &Page,
    format: &Format,
    headings: bool,
    rows: &[R],
) -> io::Result<()> {
    match format {
        Format::Table => table(out, page, R::columns(rows), headings, rows),
        Format::Wide => {
            let page = Page {
                width: None,
                wide: true,
                ..*page
            };
            table(out, &page, R::columns(rows), headings, rows)
        }
        Format::Name => {
            let mut last = String::new();
            for name in rows.iter().map(R::name) {
                if name != last {
                    writeln!(out, "{name}")?;
                    last = name;
                }
            }
            Ok(())
        }
        other => document(out, other, &rows),
    }
}

/// Writes the rows that `read` returns as `show` asks, with `--watch` again and again.
pub(super) fn list<R: Row>(show: &Show, mut read: impl FnMut() -> Result<Vec<R>>) -> Result<()> {
    show.check()?;
    let order = order::<R>(show)?;
    again(&show.look, |out, page| {
        let mut rows = read()?;
        if show.count {
            writeln!(out, "{}", rows.len())?;
            return Ok(());
        }
        sort(&mut rows, order, show.reverse);
        rows.truncate(show.limit.unwrap_or(usize::MAX));
        let shown = fitting(show, page, rows.len());
        let (format, headings) = (&show.look.output, !show.no_headers);
        write(out, page, format, headings, &rows[..shown])?;
        if shown < rows.len() {
            writeln!(out, "({} more)", rows.len() - shown)?;
        }
        Ok(())
    })
}

/// As [`list`], of what the maps have: `read` returns the rows that the arguments select. `more`:
/// filters beside those of all lists, each a flag and its value.
pub(super) fn list_maps<R: Row>(
    args: &ListArgs,
    more: &[(&str, Option<String>)],
    mut read: impl FnMut(Reader) -> Result<Vec<R>>,
) -> Result<()> {
    let ListArgs { pins, select, show } = args;
    select.check()?;
    list(show, || {
        let reader = Reader::open(&pins.pin_dir)?;
        select.check_known(&reader)?;
        let rows = read(reader)?;
        let filters = select.filters(more);
        // With --watch, rows may still come.
        if rows.is_empty() && !filters.is_empty() && !show.look.watch && !show.count {
            eprintln!("portolan: nothing has {filters}");
        }
        Ok(rows)
    })
}

/// Calls `write` once, or (`--watch`) again and again. On a terminal, each output replaces the one
/// before; elsewhere it is appended.
pub(super) fn again(
    look: &Look,
    mut write: impl FnMut(&mut BufWriter<io::StdoutLock<'static>>, &Page) -> Result<()>,
) -> Result<()> {
    let mut out = BufWriter::new(io::stdout().lock());
    loop {
        let page = Page::of_stdout();
        if look.watch && page.height.is_some() {
            out.write_all(b"\x1b[H\x1b[2J").context("write")?;
        }
        let written = write(&mut out, &page).and_then(|()| Ok(out.flush()?));
        match written {
            Err(error) if is_closed(&error) => return Ok(()),
            written => written?,
        }
        if !look.watch {
            return Ok(());
        }
        sleep(look.interval);
        if page.height.is_none() && look.output != Format::Name {
            writeln!(out).context("write")?;
        }
    }
}

/// Returns whether the program which reads this output has closed it, as `head` does.
pub(super) fn is_closed(error: &anyhow::Error) -> bool {
    let mut kinds = error.chain().filter_map(|cause| {
        let io = cause.downcast_ref::<io::Error>().map(io::Error::kind);
        let json = cause.downcast_ref::<serde_json::Error>();
        io.or_else(|| json.and_then(serde_json::Error::io_error_kind))
    });
    kinds.any(|kind| kind == io::ErrorKind::BrokenPipe)
}

/// Returns how many rows fit on the screen, if `--watch` draws a table on a terminal.
fn fitting(show: &Show, page: &Page, rows: usize) -> usize {
    let is_table = matches!(show.look.output, Format::Table | Format::Wide);
    match page.height {
        // Three lines are needed for the headings, the line about the rest, and the cursor.
        Some(height) if show.look.watch && is_table => rows.min(height.saturating_sub(3).max(1)),
        _ => rows,
    }
}

/// Returns the column that `--sort-by` names, in any case, also with spaces or underscores.
fn order<R: Row>(show: &Show) -> Result<Option<&'static Column<R>>, BadInput> {
    let Some(wanted) = &show.sort_by else {
        return Ok(None);
    };
    let heading = wanted.replace([' ', '_'], "-");
    let mut columns = R::COLUMNS.iter();
    let found = columns.find(|one| one.heading.eq_ignore_ascii_case(&heading));
    found.map(Some).ok_or_else(|| {
        let all: Vec<_> = R::COLUMNS.iter().map(|one| one.heading).collect();
        let all = all.join(", ").to_lowercase();
        BadInput(format!(
            "--sort-by: there is no column {wanted:?}; use one of {all}"
        ))
    })
}

fn sort<R: Row>(rows: &mut [R], order: Option<&'static Column<R>>, reverse: bool) {
    match order {
        // Neither sort needs memory besides the rows.
        None => rows.sort_unstable(),
        Some(column) => {
            let value = |row: &R| (column.cell)(row).value;
            rows.sort_unstable_by(|a, b| value(a).cmp(&value(b)).then_with(|| a.cmp(b)));
        }
    }
    if reverse {
        rows.reverse();
    }
}

#[cfg(test)]
#[path = "list_tests.rs"]
pub(super) mod tests;
