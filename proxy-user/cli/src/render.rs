// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Writes the rows of a list as a table, JSON, YAML, names or the values of a JSONPath. Used by
//! `list`.

use std::io::{self, Write};

use serde::Serialize;

pub(super) use super::table::{Cell, Column, Tone, Value, WIDE, column, cut, plain, toned};
use super::{
    format::{Format, document},
    table::table,
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
pub(super) fn write<R: Row>(
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
            let mut last = None;
            for row in rows {
                let name = Some(row.name());
                if name != last {
                    writeln!(out, "{}", name.as_deref().unwrap_or_default())?;
                    last = name;
                }
            }
            Ok(())
        }
        other => document(out, other, &rows),
    }
}

#[cfg(test)]
#[path = "render_tests.rs"]
pub(super) mod tests;
