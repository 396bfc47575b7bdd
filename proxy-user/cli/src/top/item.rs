// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the rows of all of `top`'s tables have in common: a text to find them by, and their order.

use std::cmp::{Ordering, Reverse};

use crate::render::{Column, Value};

/// A row of one of the tables.
pub(super) trait Item {
    /// What a filter is looked for in.
    fn words(&self) -> String;
    /// The order of rows that are alike otherwise. There may be very many.
    fn by_name(&self, other: &Self) -> Ordering;
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

/// Sorts: numbers with the greatest first, names and addresses as in a list. Without a column: by
/// weight.
pub(super) fn sort<R: Item>(rows: &mut [R], column: Option<&Column<R>>, reverse: bool) {
    match column {
        None => rows.sort_unstable_by(|a, b| {
            let weights = b.weight().cmp(&a.weight());
            weights.then_with(|| a.by_name(b))
        }),
        Some(column) => {
            let is_number = |value: &Value| {
                matches!(value, Value::Number(_) | Value::Hundredths(_) | Value::None)
            };
            rows.sort_unstable_by(|a, b| Item::by_name(a, b));
            rows.sort_by_cached_key(|row| {
                let value = (column.cell)(row).value;
                if is_number(&value) {
                    (Reverse(Some(value)), None)
                } else {
                    (Reverse(None), Some(value))
                }
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
