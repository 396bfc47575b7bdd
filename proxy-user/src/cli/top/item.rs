// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the rows of all of `top`'s tables have in common: a text to find them by, and their order.

use std::cmp::Reverse;

use crate::cli::render::{Column, Value};

/// A row of one of the tables.
pub(super) trait Item {
    /// What a filter is looked for in; rows that are alike otherwise are in its order.
    fn words(&self) -> String;
    /// The greatest comes first, unless a column is asked for.
    fn weight(&self) -> [u64; 4];
}

/// As tables show a service port.
pub(super) fn service_port(service: &str, port_name: &str) -> String {
    match (service, port_name) {
        ("", _) => "(others)".to_owned(),
        (service, "") => service.to_owned(),
        (service, port) => format!("{service}:{port}"),
    }
}

/// Sorts: numbers with the greatest first, names and addresses as in a list. Without a column: by weight.
pub(super) fn sort<R: Item>(rows: &mut [R], column: Option<&Column<R>>, reverse: bool) {
    match column {
        None => rows.sort_by_cached_key(|row| (Reverse(row.weight()), row.words())),
        Some(column) => {
            let is_number = |value: &Value| {
                matches!(value, Value::Number(_) | Value::Hundredths(_) | Value::None)
            };
            rows.sort_by_cached_key(|row| {
                let value = (column.cell)(row).value;
                let (numbers, words) = if is_number(&value) {
                    (Some(value), None)
                } else {
                    (None, Some(value))
                };
                (Reverse(numbers), words, row.words())
            });
        }
    }
    if reverse {
        rows.reverse();
    }
}

/// The column with this heading, however it is written.
pub(super) fn column<'a, R>(columns: &'a [Column<R>], heading: &str) -> Option<&'a Column<R>> {
    let heading = heading.replace([' ', '_'], "-");
    let is_it = |one: &&Column<R>| one.heading.eq_ignore_ascii_case(&heading);
    columns.iter().find(is_it)
}
