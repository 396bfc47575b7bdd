// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Metrics of single services: what the programs have counted for their backends and service ports,
//! read at each scrape. The maps forget a backend's counts when it goes; the sums here do not, so
//! that no metric goes back.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap, HashSet},
    fmt::Error,
    mem::{replace, take},
    sync::{Mutex, PoisonError},
};

use control::syncer::ReadyEndpoints;
use datapath::read::{Counted, Reader, ServicePort};
use prometheus_client::{
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{counter::ConstCounter, gauge::ConstGauge},
};
use proxy_common::{Counter, traffic::Traffic};

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

/// Connections, bytes to backends, bytes from backends, and packets.
type Figures = [u64; 4];

fn figures(traffic: &Traffic) -> Figures {
    let packets = traffic.packets_in + traffic.packets_out;
    [
        traffic.connections,
        traffic.bytes_in,
        traffic.bytes_out,
        packets,
    ]
}

/// What was counted for a service within some time.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Sums {
    figures: Figures,
    refused: BTreeMap<Counter, u64>,
}

impl Sums {
    /// Adds what a counter has now more than it had before.
    fn add_since(&mut self, before: Figures, now: Figures) {
        for (sum, (before, now)) in self.figures.iter_mut().zip(before.into_iter().zip(now)) {
            *sum += now.saturating_sub(before);
        }
    }
    fn add(&mut self, more: Self) {
        self.add_since(Figures::default(), more.figures);
        for (reason, count) in more.refused {
            *self.refused.entry(reason).or_default() += count;
        }
    }
    /// How busy the service was: packets, connections and refusals.
    fn events(&self) -> u64 {
        let [connections, _, _, packets] = self.figures;
        connections + packets + self.refused.values().sum::<u64>()
    }
}

/// A service that was asked for.
#[derive(Debug, Default)]
struct Service {
    events: u64,
    /// What was counted since the last scrape.
    new: Sums,
    /// What was counted since the service has metrics of its own; None if it has none.
    shown: Option<Sums>,
}

/// The counters as they were at the last scrape, and the sums of all services since the first one.
#[derive(Debug, Default)]
struct Ledger {
    has_begun: bool,
    /// Of each backend. Key: whether it has an IPv6 address, its id and its generation.
    backends: HashMap<(bool, u32, u32), Figures>,
    shared: Figures,
    /// By service port and reason.
    refused: BTreeMap<(u32, Counter), u64>,
    services: BTreeMap<String, Service>,
    others: Sums,
}

impl Ledger {
    /// Adds what was counted since the last scrape, and chooses the services that have metrics of
    /// their own. What an earlier agent may have reported already, before the first scrape, does
    /// not count.
    fn read(&mut self, counted: &Counted, names: &HashMap<u32, ServicePort>, most: usize) {
        let name = |id: u32| names.get(&id).map_or(OTHERS, |port| port.service.as_str());
        let mut new: HashMap<&str, Sums> = HashMap::new();
        let mut backends = HashMap::with_capacity(counted.backends.len());
        for backend in &counted.backends {
            let is_v6 = backend.address.is_ipv6();
            let key = (is_v6, backend.backend_id, backend.generation);
            let now = figures(&backend.traffic);
            let before = self.backends.get(&key).copied().unwrap_or_default();
            if now != before {
                let sums = new.entry(name(backend.service_id)).or_default();
                sums.add_since(before, now);
            }
            backends.insert(key, now);
        }
        self.backends = backends;
        let shared = figures(&counted.shared);
        let others = new.entry(OTHERS).or_default();
        others.add_since(replace(&mut self.shared, shared), shared);
        let mut refused = BTreeMap::new();
        for (service, reason, count) in &counted.refused {
            let before = self.refused.get(&(*service, *reason)).copied();
            // A smaller count is that of another service, which got the id anew.
            let more = count.checked_sub(before.unwrap_or_default());
            let more = more.unwrap_or(*count);
            if more > 0 {
                let sums = new.entry(name(*service)).or_default();
                *sums.refused.entry(*reason).or_default() += more;
            }
            refused.insert((*service, *reason), *count);
        }
        self.refused = refused;
        if replace(&mut self.has_begun, true) {
            self.add(new, names, most);
        }
    }

    fn add(
        &mut self,
        mut new: HashMap<&str, Sums>,
        names: &HashMap<u32, ServicePort>,
        most: usize,
    ) {
        self.others.add(new.remove(OTHERS).unwrap_or_default());
        let known: HashSet<_> = names.values().map(|port| port.service.as_str()).collect();
        self.services
            .retain(|name, _| known.contains(name.as_str()));
        for (name, sums) in new {
            let service = self.services.entry(name.to_owned()).or_default();
            service.events += sums.events();
            service.new = sums;
        }
        let mut busiest: Vec<_> = self.services.values_mut().collect();
        busiest.sort_by_key(|service| Reverse(service.events));
        for (rank, service) in busiest.into_iter().enumerate() {
            let new = take(&mut service.new);
            if rank < most {
                service.shown.get_or_insert_default().add(new);
            } else {
                service.shown = None;
                self.others.add(new);
            }
        }
    }

    /// Returns the sums of each service that has metrics of its own, and of all others together.
    fn rows(&self) -> Vec<(&str, &Sums)> {
        let services = self.services.iter();
        let shown =
            services.filter_map(|(name, service)| Some((name.as_str(), service.shown.as_ref()?)));
        shown.chain([(OTHERS, &self.others)]).collect()
    }
}

/// The metrics of at most so many services.
#[derive(Debug)]
pub(super) struct ServiceMetrics {
    most: usize,
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

    pub(super) const fn are_wanted(&self) -> bool {
        self.most > 0
    }

    /// Reads the counters, and writes the metrics of the busiest services.
    pub(super) fn encode(
        &self,
        reader: Reader,
        encoder: &mut DescriptorEncoder<'_>,
    ) -> Result<(), Error> {
        let Ok(counted) = reader.counted() else {
            return Ok(());
        };
        let mut ledger = self.ledger.lock().unwrap_or_else(PoisonError::into_inner);
        ledger.read(&counted, &reader.into_service_ports(), self.most);
        let rows = ledger.rows();
        let lines = rows.iter().map(|(service, sums)| {
            let labels = vec![("service", *service)];
            (labels, ConstCounter::new(sums.figures[0]))
        });
        write(encoder, CONNECTIONS, lines)?;
        let lines = rows.iter().flat_map(|(service, sums)| {
            let [_, to, from, _] = sums.figures;
            [("in", to), ("out", from)].map(|(direction, bytes)| {
                let labels = vec![("direction", direction), ("service", *service)];
                (labels, ConstCounter::new(bytes))
            })
        });
        write(encoder, BYTES, lines)?;
        let lines = rows.iter().flat_map(|(service, sums)| {
            sums.refused.iter().map(move |(reason, refused)| {
                let labels = vec![("reason", reason.name()), ("service", *service)];
                (labels, ConstCounter::new(*refused))
            })
        });
        write(encoder, REFUSED, lines)?;
        let ready = rows
            .iter()
            .filter_map(|(service, _)| Some((*service, self.ready.of(service)?)));
        let lines = ready.flat_map(|(service, [here, elsewhere])| {
            [("here", here), ("elsewhere", elsewhere)].map(|(place, endpoints)| {
                let labels = vec![("service", service), ("where", place)];
                (labels, ConstGauge::new(endpoints as i64))
            })
        });
        write(encoder, READY, lines)
    }
}

/// Writes a metric: a line for each value, with its labels.
fn write<'a, M: EncodeMetric>(
    encoder: &mut DescriptorEncoder<'_>,
    (name, _, help): About,
    lines: impl Iterator<Item = (Vec<(&'static str, &'a str)>, M)>,
) -> Result<(), Error> {
    let mut lines = lines.peekable();
    let Some((_, first)) = lines.peek() else {
        return Ok(());
    };
    let mut family = encoder.encode_descriptor(name, help, None, first.metric_type())?;
    lines.try_for_each(|(labels, value)| value.encode(family.encode_family(&labels)?))
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use datapath::read::CountedBackend;

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
        let rows = ledger.rows().into_iter();
        rows.map(|(name, sums)| (name, sums.figures[0])).collect()
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
    fn the_busiest_services_have_metrics_and_the_others_are_summed() {
        let (mut ledger, mut names) = (Ledger::default(), names());
        ledger.read(&Counted::default(), &names, 1);
        let reason = Counter::RejectedNoEndpoint;
        ledger.read(&counted(&[(1, 1, 0, 2)], &[(3, reason, 3)]), &names, 1);
        assert_eq!(connections(&ledger), [("shop/pay", 0), (OTHERS, 2)]);
        assert_eq!(ledger.rows()[0].1.refused, BTreeMap::from([(reason, 3)]));
        ledger.read(&counted(&[(1, 1, 0, 9)], &[(3, reason, 4)]), &names, 1);
        assert_eq!(connections(&ledger), [("shop/cart", 7), (OTHERS, 2)]);
        assert_eq!(ledger.others.refused, BTreeMap::from([(reason, 1)]));
        names.retain(|id, _| *id > 2);
        ledger.read(&counted(&[], &[]), &names, 9);
        assert_eq!(connections(&ledger), [("shop/pay", 0), (OTHERS, 2)]);
    }
}
