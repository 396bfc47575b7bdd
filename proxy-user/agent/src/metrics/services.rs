// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Metrics of single services: what the programs have counted for their backends and service ports,
//! read at each scrape. The maps forget a backend's counts when it goes; the sums here do not, so
//! that no metric goes back.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap, HashSet},
    fmt::Error,
    mem::replace,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use control::syncer::ReadyEndpoints;
use datapath::read::{Counted, Reader, ServicePort};
use prometheus_client::{
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{counter::ConstCounter, gauge::ConstGauge},
};
use proxy_common::Counter;

/// Name, labels and help text of a metric.
type About = (&'static str, &'static str, &'static str);

pub(super) const CONNECTIONS: About = (
    "portolan_service_connections",
    "service",
    "Connections to a service that began on this node; for UDP, conversations",
);
pub(super) const BYTES: About = (
    "portolan_service_bytes",
    "direction, service",
    "Bytes of IP packets to the endpoints of a service (`in`) and from them (`out`), without those that were translated at sockets",
);
pub(super) const REFUSED: About = (
    "portolan_service_refused",
    "reason, service",
    "Packets and connections to a service that were refused; the reasons are outcomes of `portolan_packets_total`",
);
pub(super) const READY: About = (
    "portolan_service_endpoints_ready",
    "service, where",
    "Ready endpoints of a service on this node (`here`) and on others (`elsewhere`), of the port and IP family that have most",
);

/// The value of the label `service` for what belongs to no service that has metrics of its own.
const OTHERS: &str = "(others)";

/// What is counted for a service.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
enum What {
    Connections,
    BytesIn,
    BytesOut,
    Refused(Counter),
}

type Sums = BTreeMap<What, u64>;

/// A counter in the maps: whether its backend has an IPv6 address, the id of the backend or service
/// port, the backend's generation, and what it counts.
type Source = (bool, u32, u32, What);

/// Returns every counter with its service port and its value.
fn counters(counted: &Counted) -> impl Iterator<Item = (Source, u32, u64)> {
    let backends = counted.backends.iter().map(|one| {
        let key = (one.address.is_ipv6(), one.backend_id, one.generation);
        (key, one.service_id, &one.traffic)
    });
    let all = backends.chain([((false, 0, 0), 0, &counted.shared)]);
    let of_traffic = all.flat_map(|((is_v6, id, generation), service, traffic)| {
        [
            (What::Connections, traffic.connections),
            (What::BytesIn, traffic.bytes_in),
            (What::BytesOut, traffic.bytes_out),
        ]
        .map(|(what, count)| ((is_v6, id, generation, what), service, count))
    });
    let refused = counted.refused.iter().map(|(service, reason, count)| {
        let source = (false, *service, 0, What::Refused(*reason));
        (source, *service, *count)
    });
    of_traffic.chain(refused)
}

fn add(sums: &mut Sums, more: Sums) {
    for (what, count) in more {
        *sums.entry(what).or_default() += count;
    }
}

/// A service that was asked for.
#[derive(Debug, Default)]
struct Service {
    /// How busy it was: connections and refusals.
    events: u64,
    /// What was counted since the service has metrics of its own; None if it has none.
    shown: Option<Sums>,
}

/// The counters as they were at the last scrape, and the sums of all services since the first one.
#[derive(Debug, Default)]
struct Ledger {
    has_begun: bool,
    /// The directory of the maps that were read last; None if they were taking over.
    home: Option<PathBuf>,
    last: HashMap<Source, u64>,
    services: BTreeMap<String, Service>,
    others: Sums,
}

impl Ledger {
    /// Begins anew if the counters are those of other maps: these have got the counts of the maps
    /// before, under other ids.
    fn follow(&mut self, home: Option<PathBuf>) {
        self.has_begun &= home.is_some() && home == self.home;
        self.home = home;
    }

    /// Adds what was counted since the last scrape, and chooses the services that have metrics of
    /// their own. What was counted before the first scrape may be in the metrics of an earlier
    /// agent, and does not count.
    fn read(&mut self, counted: &Counted, names: &HashMap<u32, ServicePort>, most: usize) {
        let mut new: HashMap<&str, Sums> = HashMap::new();
        let mut last = HashMap::new();
        for (source, service, count) in counters(counted).filter(|(.., count)| *count > 0) {
            let before = self.last.get(&source).copied().unwrap_or_default();
            // A smaller count is that of another service port, which got the id anew.
            let more = count.checked_sub(before).unwrap_or(count);
            if more > 0 {
                let name = names.get(&service).map_or(OTHERS, |port| &*port.service);
                *new.entry(name).or_default().entry(source.3).or_default() += more;
            }
            last.insert(source, count);
        }
        self.last = last;
        if !replace(&mut self.has_begun, true) {
            return;
        }
        add(&mut self.others, new.remove(OTHERS).unwrap_or_default());
        let known: HashSet<&str> = names.values().map(|port| &*port.service).collect();
        self.services.retain(|name, _| known.contains(&**name));
        for (name, sums) in &new {
            let events = sums
                .iter()
                .filter(|(what, _)| !matches!(what, What::BytesIn | What::BytesOut));
            let service = self.services.entry((*name).to_owned()).or_default();
            service.events += events.map(|(_, count)| count).sum::<u64>();
        }
        let mut busiest: Vec<_> = self.services.iter_mut().collect();
        busiest.sort_by_key(|(_, service)| Reverse(service.events));
        for (rank, (name, service)) in busiest.into_iter().enumerate() {
            let new = new.remove(name.as_str()).unwrap_or_default();
            if rank < most {
                add(service.shown.get_or_insert_default(), new);
            } else {
                service.shown = None;
                add(&mut self.others, new);
            }
        }
    }

    /// Returns the sums of each service that has metrics of its own, and of all others together.
    fn rows(&self) -> Vec<(&str, &Sums)> {
        let services = self.services.iter();
        let shown = services.filter_map(|(name, one)| Some((name.as_str(), one.shown.as_ref()?)));
        shown.chain([(OTHERS, &self.others)]).collect()
    }
}

/// The metrics of at most so many services.
#[derive(Debug)]
pub(super) struct ServiceMetrics {
    pub(super) most: usize,
    ready: ReadyEndpoints,
    ledger: Mutex<Ledger>,
}

impl ServiceMetrics {
    pub(super) fn new(most: u32, ready: ReadyEndpoints) -> Self {
        Self {
            most: most as usize,
            ready,
            ledger: Mutex::default(),
        }
    }

    /// Reads the counters, and writes the metrics of the busiest services.
    pub(super) fn encode(
        &self,
        reader: Reader,
        encoder: &mut DescriptorEncoder<'_>,
    ) -> Result<(), Error> {
        let home = reader.settled().map(Path::to_owned);
        let Ok(counted) = reader.counted() else {
            return Ok(());
        };
        let mut ledger = self.ledger.lock().unwrap_or_else(PoisonError::into_inner);
        ledger.follow(home);
        ledger.read(&counted, &reader.into_service_ports(), self.most);
        let rows = ledger.rows();
        let mut lines: [Vec<_>; 3] = Default::default();
        for (service, sums) in &rows {
            for (what, count) in sums.iter() {
                let (metric, mut labels) = match what {
                    What::Connections => (0, vec![]),
                    What::BytesIn => (1, vec![("direction", "in")]),
                    What::BytesOut => (1, vec![("direction", "out")]),
                    What::Refused(reason) => (2, vec![("reason", reason.name())]),
                };
                labels.push(("service", *service));
                lines[metric].push((labels, ConstCounter::new(*count)));
            }
        }
        for (about, lines) in [CONNECTIONS, BYTES, REFUSED].into_iter().zip(lines) {
            write(encoder, about, &lines)?;
        }
        let mut lines = Vec::new();
        for (service, _) in rows {
            let ready = self.ready.of(service).into_iter().flatten();
            for (place, ready) in ["here", "elsewhere"].into_iter().zip(ready) {
                let labels = vec![("service", service), ("where", place)];
                lines.push((labels, ConstGauge::new(ready as i64)));
            }
        }
        write(encoder, READY, &lines)
    }
}

/// Writes a metric: a line for each value, with its labels.
fn write<M: EncodeMetric>(
    encoder: &mut DescriptorEncoder<'_>,
    (name, _, help): About,
    lines: &[(Vec<(&str, &str)>, M)],
) -> Result<(), Error> {
    let Some((_, first)) = lines.first() else {
        return Ok(());
    };
    let mut family = encoder.encode_descriptor(name, help, None, first.metric_type())?;
    let mut lines = lines.iter();
    lines.try_for_each(|(labels, value)| value.encode(family.encode_family(labels)?))
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use datapath::read::CountedBackend;
    use proxy_common::traffic::Traffic;

    use super::*;

    fn names() -> HashMap<u32, ServicePort> {
        let all = ["shop/cart", "shop/cart", "shop/pay", "shop/web"];
        let port = |service: &str| ServicePort {
            service: service.to_owned(),
            port_name: String::new(),
            port: 80,
            protocol: "TCP",
        };
        (1..).zip(all.map(port)).collect()
    }

    /// A backend: its service port, id, generation and connections.
    type One = (u32, u32, u32, u64);

    fn counted(backends: &[One], refused: &[(u32, Counter, u64)]) -> Counted {
        let backend = |(service_id, backend_id, generation, connections): &One| CountedBackend {
            address: SocketAddr::from(([10, 40, 1, 1], 80)),
            service_id: *service_id,
            generation: *generation,
            backend_id: *backend_id,
            traffic: Traffic {
                connections: *connections,
                ..Traffic::default()
            },
        };
        Counted {
            backends: backends.iter().map(backend).collect(),
            refused: refused.to_vec(),
            ..Counted::default()
        }
    }

    fn connections(ledger: &Ledger) -> Vec<(&str, u64)> {
        let count = |sums: &Sums| sums.get(&What::Connections).copied().unwrap_or_default();
        let rows = ledger.rows().into_iter();
        rows.map(|(name, sums)| (name, count(sums))).collect()
    }

    #[test]
    fn counters_begin_at_the_first_scrape_and_never_go_back_while_backends_come_and_go() {
        let (mut ledger, names) = (Ledger::default(), names());
        let mut read = |backends: &[One]| {
            ledger.read(&counted(backends, &[]), &names, 9);
            let all = connections(&ledger).into_iter();
            all.map(|(_, count)| count).collect::<Vec<_>>()
        };
        assert_eq!(read(&[(1, 1, 0, 100), (1, 2, 0, 50)]), [0]);
        assert_eq!(read(&[(1, 1, 0, 103), (1, 2, 0, 50)]), [3, 0]);
        assert_eq!(read(&[(1, 2, 0, 51)]), [4, 0], "a backend is gone");
        assert_eq!(read(&[(2, 1, 1, 2), (1, 2, 0, 51)]), [6, 0], "its id again");
    }

    #[test]
    fn counts_that_maps_have_taken_over_are_not_counted_again() {
        let (mut ledger, names) = (Ledger::default(), names());
        let mut read = |home: Option<&str>, backend_id, count| {
            ledger.follow(home.map(PathBuf::from));
            ledger.read(&counted(&[(1, backend_id, 0, count)], &[]), &names, 9);
            connections(&ledger)[0].1
        };
        assert_eq!(read(Some("v1"), 1, 100), 0);
        assert_eq!(read(Some("v1"), 1, 103), 3);
        assert_eq!(read(None, 7, 1), 3, "they take over");
        assert_eq!(read(None, 7, 105), 3);
        assert_eq!(read(Some("v1-1"), 7, 106), 3);
        assert_eq!(read(Some("v1-1"), 7, 108), 5);
        assert_eq!(read(Some("v1-2"), 9, 109), 5, "between two scrapes");
    }

    #[test]
    fn the_busiest_services_have_metrics_and_the_others_are_summed() {
        let (mut ledger, mut names) = (Ledger::default(), names());
        ledger.read(&Counted::default(), &names, 1);
        let reason = Counter::RejectedNoEndpoint;
        ledger.read(&counted(&[(1, 1, 0, 2)], &[(3, reason, 3)]), &names, 1);
        assert_eq!(connections(&ledger), [("shop/pay", 0), (OTHERS, 2)]);
        assert_eq!(ledger.rows()[0].1[&What::Refused(reason)], 3);
        ledger.read(&counted(&[(1, 1, 0, 9)], &[(3, reason, 4)]), &names, 1);
        assert_eq!(connections(&ledger), [("shop/cart", 7), (OTHERS, 2)]);
        assert_eq!(ledger.others[&What::Refused(reason)], 1);
        names.retain(|id, _| *id > 2);
        ledger.read(&counted(&[], &[]), &names, 9);
        assert_eq!(connections(&ledger), [("shop/pay", 0), (OTHERS, 2)]);
    }
}
