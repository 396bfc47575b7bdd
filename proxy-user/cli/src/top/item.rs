// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the rows of all tables of `top` have in common: a text that the filter searches, and an
//! order.

use std::cmp::{Ordering, Reverse};

use crate::render::{Column, Value};

/// A type whose values are the rows of one of `top`'s tables.
pub(super) trait Item {
    /// Returns the text of the row that the user's filter searches.
    fn words(&self) -> String;
    /// Compares two rows by name, for rows that are equal otherwise. Called for very many rows.
    fn by_name(&self, other: &Self) -> Ordering;
    /// Returns the sort key of the default order; the row with the greatest key comes first.
    fn weight(&self) -> [u64; 4];
}

/// Returns how tables show a service port.
pub(super) fn service_port(service: &str, port_name: &str) -> String {
    match (service, port_name) {
        ("", _) => "(others)".to_owned(),
        (service, "") => service.to_owned(),
        (service, port) => format!("{service}:{port}"),
    }
}

/// Sorts rows by a column: numbers with the greatest first, names and addresses ascending. Without
/// a column, sorts by [`Item::weight`], the greatest first.
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

/// Returns the column with this heading; ignores case, and takes spaces and underscores as dashes.
pub(super) fn column<'a, R>(columns: &'a [Column<R>], heading: &str) -> Option<&'a Column<R>> {
    let heading = heading.replace([' ', '_'], "-");
    let is_it = |one: &&Column<R>| one.heading.eq_ignore_ascii_case(&heading);
    columns.iter().find(is_it)
}
