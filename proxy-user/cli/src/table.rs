// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Writes tables that fit the page. Rows are written one by one, so that a long table needs no
//! memory besides its rows. Used by `list` and by commands whose rows are not a list.

use std::{
    fmt::Write as _,
    io::{self, Write},
};

pub(super) use super::cell::{Cell, Column, Tone, Value, WIDE, column, cut, plain, toned};
use super::terminal::Page;

const GAP: usize = 2;
/// The smallest width to which a column is shortened.
const LEAST: usize = 8;

/// Writes a table. Goes through the rows twice: to find the widths, and to write.
pub(super) fn table<'a, R: 'a>(
    out: &mut impl Write,
    page: &Page,
    columns: impl IntoIterator<Item = &'a Column<R>>,
    headings: bool,
    rows: &[R],
) -> io::Result<()> {
    let is_shown = |column: &&Column<R>| page.wide || column.rank != WIDE;
    let mut columns: Vec<_> = columns.into_iter().filter(is_shown).collect();
    let heading = |column: &&Column<R>| if headings { column.heading.len() } else { 0 };
    let mut widths: Vec<_> = columns.iter().map(heading).collect();
    let mut text = String::new();
    for row in rows {
        for (column, width) in columns.iter().zip(&mut widths) {
            put(&mut text, &(column.cell)(row).value);
            *width = length(&text).max(*width);
        }
    }
    fit(page, &mut columns, &mut widths);
    // The last column needs no spaces behind it.
    let gaps: Vec<_> = (1..columns.len()).map(|_| GAP).chain([0]).collect();
    let places = || columns.iter().zip(widths.iter().zip(&gaps));
    if headings {
        for (column, place) in places() {
            write_cell(out, page, column.heading, Tone::Plain, place)?;
        }
        writeln!(out)?;
    }
    for row in rows {
        for (column, place) in places() {
            let cell = (column.cell)(row);
            put(&mut text, &cell.value);
            write_cell(out, page, &text, cell.tone, place)?;
        }
        writeln!(out)?;
    }
    Ok(())
}

/// Writes a text in a column of this width and, unless it is the last, the gap behind it.
fn write_cell(
    out: &mut impl Write,
    page: &Page,
    text: &str,
    tone: Tone,
    (width, gap): (&usize, &usize),
) -> io::Result<()> {
    let (kept, end) = shortened(text, *width);
    let code = tone.code().filter(|_| page.colour);
    let (code, plain) = code.map_or(("", ""), |code| (code, "\x1b[0m"));
    write!(out, "{code}{kept}{end}{plain}")?;
    let pad = match gap {
        0 => 0,
        gap => width.saturating_sub(length(text)) + gap,
    };
    out.write_all(" ".repeat(pad).as_bytes())
}

/// Replaces the contents of `text` by the value, on one line.
fn put(text: &mut String, value: &Value) {
    text.clear();
    // Writing to a string does not fail.
    _ = write!(text, "{value}");
    // Other programs choose names, and these must not send control characters to a terminal.
    if !text.bytes().all(|byte| (b' '..=b'~').contains(&byte)) {
        *text = text.replace(char::is_control, " ");
    }
}

fn length(text: &str) -> usize {
    if text.is_ascii() {
        return text.len();
    }
    text.chars().count()
}

/// Leaves out columns until the others could fit on the page if shortened; then shortens them.
fn fit<R>(page: &Page, columns: &mut Vec<&Column<R>>, widths: &mut Vec<usize>) {
    let Some(room) = page.width else { return };
    let gaps = |widths: &[usize]| GAP * widths.len().saturating_sub(1);
    let taken = |widths: &[usize]| widths.iter().sum::<usize>() + gaps(widths);
    let needed = |columns: &[&Column<R>], widths: &[usize]| {
        let both = columns.iter().zip(widths);
        let least = both.map(|(column, width)| column.least.min(*width));
        least.sum::<usize>() + gaps(widths)
    };
    while needed(columns, widths) > room {
        let ranks = columns.iter().enumerate().map(|(at, one)| (one.rank, at));
        match ranks.max() {
            Some((rank, at)) if rank > 0 => {
                columns.remove(at);
                widths.remove(at);
            }
            _ => break,
        }
    }
    // A shortened address is useless, so the columns that may be shortened are it first.
    let least: [fn(usize) -> usize; 3] = [
        |least| least,
        |least| if least < usize::MAX { LEAST } else { least },
        |_| LEAST,
    ];
    for least in least {
        while taken(widths) > room {
            let both = columns.iter().zip(widths.iter_mut());
            let cut = both.filter(|(column, width)| **width > least(column.least));
            match cut.max_by_key(|(_, width)| **width) {
                Some((_, width)) => *width -= 1,
                None => break,
            }
        }
    }
}

/// Returns the part of a text that fits into `width`, and "…" if some is missing, else "".
fn shortened(text: &str, width: usize) -> (&str, &'static str) {
    if length(text) <= width {
        return (text, "");
    }
    let end = text.char_indices().nth(width.saturating_sub(1));
    (&text[..end.map_or(text.len(), |(at, _)| at)], "…")
}
