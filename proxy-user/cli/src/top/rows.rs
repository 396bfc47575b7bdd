// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The rows of `top`: one for each service port or backend, from one sample or two. Pure.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap},
    net::SocketAddr,
};

use datapath::read::{Counted, CountedBackend, ServicePort};
use proxy_common::{Counter, traffic::Traffic};
use serde::Serialize;

use super::{Before, Sample};
use crate::{
    args::Select,
    counters::rate,
    frame::port_label,
    list::Row,
    table::{Column, Tone, WIDE, column, cut, plain, toned},
};

/// The service port of a row that is about no single one.
pub(super) const OTHERS: ServicePort = ServicePort {
    service: String::new(),
    port_name: String::new(),
    port: 0,
    protocol: "-",
};

/// Returns the service port as tables show it.
pub(super) fn label(of: &ServicePort) -> String {
    match of.service.as_str() {
        "" => "(others)".to_owned(),
        service => port_label(service, &of.port_name),
    }
}

/// Returns whether the user's arguments select a row about this service port and backend.
pub(super) fn selects(select: &Select, of: &ServicePort, backend: Option<SocketAddr>) -> bool {
    let (service, name, ends) = (&of.service, &of.port_name, backend.as_slice());
    select.wants(service, name, of.port, of.protocol, ends)
}

/// The rates per second that ipvsadm calls CPS, InPPS, OutPPS, InBPS and OutBPS.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Rates {
    pub(super) connections: u64,
    pub(super) packets_in: u64,
    pub(super) packets_out: u64,
    pub(super) bytes_in: u64,
    pub(super) bytes_out: u64,
}

/// The traffic of a service port, or of one of its backends. Rows are sorted by their first fields.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct TopRow {
    /// What moves most comes first: by bytes per second, then by bytes, connections and refusals.
    #[serde(skip)]
    weight: Reverse<[u64; 4]>,
    #[serde(flatten)]
    pub(super) of: ServicePort,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) endpoint: Option<SocketAddr>,
    pub(super) connections: u64,
    pub(super) packets_in: u64,
    pub(super) bytes_in: u64,
    pub(super) packets_out: u64,
    pub(super) bytes_out: u64,
    pub(super) affinity_hits: u64,
    pub(super) unanswered_syns: u64,
    pub(super) retransmitted_syns: u64,
    /// How many packets and calls were refused, by the counter's name. Empty for backends.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) refused: BTreeMap<&'static str, u64>,
    /// The rates per second; None at the first sample.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) rates: Option<Rates>,
}

/// What a row is about: the service port's id, and perhaps a backend's address and generation.
type Whose = (u32, Option<(SocketAddr, u32)>);

/// Returns a row for each service port, or with `backends` for each backend; unsorted.
pub(super) fn rows(now: &Sample, before: Before<'_>, backends: bool) -> Vec<TopRow> {
    let counted = &now.counted;
    let sums = sums(counted, backends);
    let last = before.map(|(then, seconds)| (self::sums(&then.counted, backends), seconds));
    let mut refused: HashMap<u32, BTreeMap<&'static str, u64>> = HashMap::new();
    for (service, counter, count) in counted.refused.iter().filter(|_| !backends) {
        let reasons = refused.entry(*service).or_default();
        *reasons.entry(Counter::name(*counter)).or_default() += count;
    }
    let mut whose: Vec<Whose> = sums.iter().map(|(whose, _)| *whose).collect();
    whose.extend(refused.keys().map(|service| (*service, None)));
    whose.sort_unstable();
    whose.dedup();
    let row = |whose: Whose| {
        let traffic = find(&sums, whose);
        let rates = last.as_ref().map(|(last, seconds)| {
            let then = find(last, whose);
            rates(&traffic, &then, *seconds)
        });
        let (service, backend) = whose;
        let refused = refused.get(&service).cloned().unwrap_or_default();
        let moving = rates.map_or(0, |rates: Rates| rates.bytes_in + rates.bytes_out);
        let moved = traffic.bytes_in + traffic.bytes_out;
        let refusals = refused.values().sum();
        TopRow {
            weight: Reverse([moving, moved, traffic.connections, refusals]),
            of: now.names.get(&service).cloned().unwrap_or(OTHERS),
            endpoint: backend.map(|(address, _)| address),
            connections: traffic.connections,
            packets_in: traffic.packets_in,
            bytes_in: traffic.bytes_in,
            packets_out: traffic.packets_out,
            bytes_out: traffic.bytes_out,
            affinity_hits: traffic.affinity_hits,
            unanswered_syns: traffic.unanswered,
            retransmitted_syns: traffic.retransmitted,
            refused,
            rates,
        }
    };
    whose.into_iter().map(row).collect()
}

/// Returns the traffic of each row, sorted by what the row is about.
fn sums(counted: &Counted, backends: bool) -> Vec<(Whose, Traffic)> {
    let of = |backend: &CountedBackend| {
        let of_backend = backends.then_some((backend.address, backend.generation));
        (backend.service_id, of_backend)
    };
    // There may be hundreds of thousands of backends: sorting them is faster than a hash map.
    let all = counted.backends.iter();
    let mut all: Vec<_> = all.map(|one| (of(one), &one.traffic)).collect();
    if counted.others != Traffic::default() {
        all.push(((0, None), &counted.others));
    }
    all.sort_unstable_by_key(|(whose, _)| *whose);
    let sums = all.chunk_by(|(one, _), (next, _)| one == next).map(|same| {
        let mut sum = Traffic::default();
        same.iter().for_each(|(_, traffic)| sum.add(traffic));
        (same[0].0, sum)
    });
    sums.collect()
}

/// Returns the traffic for `whose` in a sorted list; zeros if it is missing.
fn find(sums: &[(Whose, Traffic)], whose: Whose) -> Traffic {
    let place = sums.binary_search_by_key(&whose, |(whose, _)| *whose);
    place.map_or_else(|_| Traffic::default(), |place| sums[place].1)
}

fn rates(now: &Traffic, then: &Traffic, seconds: f64) -> Rates {
    let rate = |now, then| rate(now, then, seconds);
    Rates {
        connections: rate(now.connections, then.connections),
        packets_in: rate(now.packets_in, then.packets_in),
        packets_out: rate(now.packets_out, then.packets_out),
        bytes_in: rate(now.bytes_in, then.bytes_in),
        bytes_out: rate(now.bytes_out, then.bytes_out),
    }
}

impl TopRow {
    fn refused(&self) -> u64 {
        self.refused.values().sum()
    }
}

impl Row for TopRow {
    const COLUMNS: &'static [Column<Self>] = &[
        cut("SERVICE", 0, |row| plain(label(&row.of))),
        column("BACKEND", 0, |row| plain(row.endpoint)),
        column("CPS", 1, |row| plain(row.rates.map(|one| one.connections))),
        column("INPPS", 1, |row| plain(row.rates.map(|one| one.packets_in))),
        column("OUTPPS", 1, |row| {
            plain(row.rates.map(|one| one.packets_out))
        }),
        column("INBPS", 1, |row| plain(row.rates.map(|one| one.bytes_in))),
        column("OUTBPS", 1, |row| plain(row.rates.map(|one| one.bytes_out))),
        column("CONNS", 0, |row| plain(row.connections)),
        column("INPKTS", 2, |row| plain(row.packets_in)),
        column("OUTPKTS", 2, |row| plain(row.packets_out)),
        column("INBYTES", 3, |row| plain(row.bytes_in)),
        column("OUTBYTES", 3, |row| plain(row.bytes_out)),
        column("REFUSED", 0, |row| {
            toned(row.refused(), Tone::Bad.when(row.refused() > 0))
        }),
        column("RETRANS", 1, |row| plain(row.retransmitted_syns)),
        column("UNANSWERED", 2, |row| plain(row.unanswered_syns)),
        column("AFFINITY", 4, |row| plain(row.affinity_hits)),
        column("WHY", WIDE, |row| {
            let reasons = row.refused.iter();
            let words = reasons.map(|(name, count)| format!("{name} {count}"));
            plain(words.collect::<Vec<_>>().join(", "))
        }),
    ];
    /// Only rows of backends have BACKEND, and only those of a later look have rates.
    fn columns(rows: &[Self]) -> Vec<&'static Column<Self>> {
        let (backends, rates) = rows.first().map_or((false, false), |row| {
            (row.endpoint.is_some(), row.rates.is_some())
        });
        let is_shown = |one: &&Column<Self>| match one.heading {
            "BACKEND" => backends,
            heading => rates || !heading.ends_with("PS"),
        };
        Self::COLUMNS.iter().filter(is_shown).collect()
    }
    fn name(&self) -> String {
        match self.endpoint {
            Some(endpoint) => format!("backend/{endpoint}"),
            None => format!("service/{}", label(&self.of)),
        }
    }
}

#[cfg(test)]
#[path = "rows_tests.rs"]
pub(super) mod tests;
