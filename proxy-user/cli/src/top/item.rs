// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the rows of all tables of `top` have in common: a text that the filter searches, and an
//! order.

use std::{
    cmp::{Ordering, Reverse},
    fmt::{self, Display, Formatter},
    net::SocketAddr,
};

use datapath::read::ServicePort;
use serde::Serialize;

use crate::{
    args::{Of, Select},
    render::{Column, Value},
};

/// A type whose values are the rows of one of `top`'s tables.
pub(super) trait Item {
    /// Returns the text of the row that the user's filter searches.
    fn words(&self) -> String;
    /// Compares two rows by name, for rows that are equal otherwise. Called for very many rows.
    fn by_name(&self, other: &Self) -> Ordering;
    /// Returns the sort key of the default order; the row with the greatest key comes first.
    fn weight(&self) -> [u64; 4];
}

/// The service port that a row is about.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct OfPort {
    /// The service's namespace and name; empty if the row is about no single service port.
    pub(super) service: String,
    pub(super) port_name: String,
    pub(super) port: u16,
    pub(super) protocol: &'static str,
}

impl OfPort {
    pub(super) fn new(port: Option<&ServicePort>) -> Self {
        Self {
            service: port.map_or_else(String::new, |port| port.service.clone()),
            port_name: port.map_or_else(String::new, |port| port.port_name.clone()),
            port: port.map_or(0, |port| port.port),
            protocol: port.map_or("-", |port| port.protocol),
        }
    }
    /// Returns whether the user's arguments select a row about this service port and backend.
    pub(super) fn is_selected(&self, select: &Select, backend: Option<SocketAddr>) -> bool {
        let of = Of::new(&self.service, &self.port_name, self.port);
        select.wants(of, self.protocol, backend.as_slice())
    }
}

/// Writes the service port as tables show it.
impl Display for OfPort {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match (&*self.service, &*self.port_name) {
            ("", _) => f.write_str("(others)"),
            (service, "") => f.write_str(service),
            (service, port) => write!(f, "{service}:{port}"),
        }
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
