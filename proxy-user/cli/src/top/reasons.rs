// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Why packets and calls were refused: a row for each service port and reason. Pure.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap},
};

use config::runbooks::of_outcome;
use datapath::read::ServicePort;
use proxy_common::Counter;
use serde::Serialize;

use super::rows::OfPort;
use crate::{
    counters::rate,
    render::{Column, Row, Tone, WIDE, column, cut, plain, toned},
};

/// How many packets and calls of a service port were refused for one reason. Rows are sorted by
/// their first fields.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ReasonRow {
    /// What is refused most comes first: by refusals per second, then by all.
    #[serde(skip)]
    weight: Reverse<(Option<u64>, u64)>,
    #[serde(flatten)]
    pub(super) of: OfPort,
    pub(super) reason: &'static str,
    pub(super) count: u64,
    /// Refusals per second; None at the first sample.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) per_second: Option<u64>,
    pub(super) help: &'static str,
    /// The documentation page that says what to do, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) page: Option<&'static str>,
}

/// The counts of refusals at one time.
#[derive(Clone, Copy)]
pub(super) struct Tally<'a> {
    /// Id of the service port, the reason (a counter), and the count.
    pub(super) refused: &'a [(u32, Counter, u64)],
    /// The values of all counters. They are read before `refused`, so they are never too large.
    pub(super) counters: &'a [u64],
}

impl Tally<'_> {
    /// Returns the counts by service port and reason. Refusals without a service port have id 0.
    fn sums(&self) -> BTreeMap<(u32, Counter), u64> {
        let mut sums: BTreeMap<(u32, Counter), u64> = BTreeMap::new();
        let mut known: BTreeMap<Counter, u64> = BTreeMap::new();
        for (service, counter, count) in self.refused {
            *sums.entry((*service, *counter)).or_default() += count;
            *known.entry(*counter).or_default() += count;
        }
        let reasons = Counter::ALL.iter().zip(self.counters);
        for (counter, all) in reasons.filter(|(counter, _)| of_outcome(**counter).is_some()) {
            let rest = all.saturating_sub(known.get(counter).copied().unwrap_or_default());
            if rest > 0 {
                *sums.entry((0, *counter)).or_default() += rest;
            }
        }
        sums
    }
}

/// Returns a row for each service port and reason, unsorted. `before`: the earlier counts, and the
/// seconds since then.
pub(super) fn rows(
    now: Tally<'_>,
    before: Option<(Tally<'_>, f64)>,
    names: &HashMap<u32, ServicePort>,
) -> Vec<ReasonRow> {
    let then = before.map(|(tally, seconds)| (tally.sums(), seconds));
    let row = |((service, counter), count): ((u32, Counter), u64)| {
        let per_second = then.as_ref().map(|(then, seconds)| {
            let then = then.get(&(service, counter)).copied().unwrap_or_default();
            rate(count, then, *seconds)
        });
        ReasonRow {
            weight: Reverse((per_second, count)),
            of: OfPort::new(names.get(&service)),
            reason: counter.name(),
            count,
            per_second,
            help: counter.help().trim(),
            page: of_outcome(counter),
        }
    };
    now.sums().into_iter().map(row).collect()
}

impl Row for ReasonRow {
    const COLUMNS: &'static [Column<Self>] = &[
        cut("SERVICE", 0, |row| plain(row.of.to_string())),
        column("REASON", 0, |row| plain(row.reason)),
        column("COUNT", 0, |row| toned(row.count, Tone::Bad)),
        column("PER-SECOND", 1, |row| plain(row.per_second)),
        cut("MEANING", 2, |row| plain(row.help)),
        column("PAGE", WIDE, |row| plain(row.page)),
    ];
    fn name(&self) -> String {
        format!("outcome/{}", self.reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_without_a_service_port_have_a_row_of_their_own() {
        let mut counters = vec![0; Counter::ALL.len()];
        counters[Counter::RejectedNoEndpoint as usize] = 9;
        counters[Counter::BindRefused as usize] = 2;
        counters[Counter::ForwardedNew as usize] = 1_000;
        let refused = [(7, Counter::RejectedNoEndpoint, 6)];
        let now = Tally {
            refused: &refused,
            counters: &counters,
        };
        let before = Tally {
            refused: &[(7, Counter::RejectedNoEndpoint, 2)],
            counters: &[],
        };
        let cart = ServicePort {
            service: "shop/cart".to_owned(),
            port_name: "http".to_owned(),
            port: 80,
            protocol: "TCP",
        };
        let rows = rows(now, Some((before, 2.0)), &HashMap::from([(7, cart)]));
        let seen: Vec<_> = rows
            .iter()
            .map(|row| {
                (
                    format!("{} {}", row.of, row.reason),
                    row.count,
                    row.per_second,
                )
            })
            .collect();
        let row = |words: &str, count, rate| (words.to_owned(), count, Some(rate));
        assert_eq!(
            seen,
            [
                row("(others) rejected_no_endpoint", 3, 2),
                row("(others) bind_refused_node_port", 2, 1),
                row("shop/cart:http rejected_no_endpoint", 6, 2),
            ]
        );
    }
}
