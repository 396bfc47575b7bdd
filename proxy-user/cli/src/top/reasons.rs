// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Why packets and calls were refused: a row for each service port and reason. Pure.

use std::{cmp::Reverse, collections::BTreeMap};

use config::runbooks::of_outcome;
use datapath::read::ServicePort;
use proxy_common::Counter;
use serde::Serialize;

use super::{
    Before, Sample,
    rows::{OTHERS, label},
};
use crate::{
    counters::rate,
    list::Row,
    table::{Column, Tone, WIDE, column, cut, plain, toned},
};

/// How many packets and calls of a service port were refused for one reason.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ReasonRow {
    /// What is refused most comes first: by refusals per second, then by all.
    #[serde(skip)]
    weight: Reverse<(Option<u64>, u64)>,
    #[serde(flatten)]
    pub(super) of: ServicePort,
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

/// Returns the counts by service port and reason. Refusals without a service port have id 0.
fn sums(sample: &Sample) -> BTreeMap<(u32, Counter), u64> {
    let mut sums: BTreeMap<(u32, Counter), u64> = BTreeMap::new();
    let mut known: BTreeMap<Counter, u64> = BTreeMap::new();
    for (service, counter, count) in &sample.counted.refused {
        *sums.entry((*service, *counter)).or_default() += count;
        *known.entry(*counter).or_default() += count;
    }
    let reasons = Counter::ALL.iter().zip(&sample.counters);
    for (counter, all) in reasons.filter(|(counter, _)| of_outcome(**counter).is_some()) {
        let rest = all.saturating_sub(known.get(counter).copied().unwrap_or_default());
        if rest > 0 {
            *sums.entry((0, *counter)).or_default() += rest;
        }
    }
    sums
}

/// Returns a row for each service port and reason, unsorted.
pub(super) fn rows(now: &Sample, before: Before<'_>) -> Vec<ReasonRow> {
    let then = before.map(|(then, seconds)| (sums(then), seconds));
    let row = |((service, counter), count): ((u32, Counter), u64)| {
        let per_second = then.as_ref().map(|(then, seconds)| {
            let then = then.get(&(service, counter)).copied().unwrap_or_default();
            rate(count, then, *seconds)
        });
        ReasonRow {
            weight: Reverse((per_second, count)),
            of: now.names.get(&service).cloned().unwrap_or(OTHERS),
            reason: counter.name(),
            count,
            per_second,
            help: counter.help().trim(),
            page: of_outcome(counter),
        }
    };
    sums(now).into_iter().map(row).collect()
}

impl Row for ReasonRow {
    const COLUMNS: &'static [Column<Self>] = &[
        cut("SERVICE", 0, |row| plain(label(&row.of))),
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
    use crate::top::rows::tests::sample;

    #[test]
    fn refusals_without_a_service_port_have_a_row_of_their_own() {
        let (mut before, mut now) = (sample(0), sample(0));
        before.counted.refused = vec![(1, Counter::RejectedNoEndpoint, 2)];
        before.counters.clear();
        now.counted.refused = vec![(1, Counter::RejectedNoEndpoint, 6)];
        now.counters[Counter::RejectedNoEndpoint as usize] = 9;
        now.counters[Counter::SocketTableFull as usize] = 2;
        now.counters[Counter::ForwardedNew as usize] = 1_000;
        let seen = rows(&now, Some((&before, 2.0))).into_iter().map(|row| {
            let words = format!("{} {}", label(&row.of), row.reason);
            (words, row.count, row.per_second)
        });
        let row = |words: &str, count, rate| (words.to_owned(), count, Some(rate));
        let expected = [
            row("(others) rejected_no_endpoint", 3, 2),
            row("(others) socket_table_full", 2, 1),
            row("shop/cart:http rejected_no_endpoint", 6, 2),
        ];
        assert_eq!(seen.collect::<Vec<_>>(), expected);
    }
}
