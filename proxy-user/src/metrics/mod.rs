// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the agent measures, under kube-proxy's names where it has one, and what the kernel programs count.
//! Written by `agent` and the servers, shown by `server::metrics`.

use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, SystemTime},
};

use k8s_openapi::jiff::Timestamp;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric, text::encode},
    metrics::{
        counter::{ConstCounter, Counter},
        family::Family,
        gauge::{ConstGauge, Gauge},
        histogram::{Histogram, exponential_buckets},
        info::Info,
    },
    registry::{Metric, Registry, Unit},
};

use crate::{
    datapath::{Fill, Occupancy, read::Reader},
    warnings::Warnings,
};

type Seconds = Gauge<f64, std::sync::atomic::AtomicU64>;

/// Everything that is measured, shared with the servers.
#[derive(Clone, Debug)]
pub struct Metrics {
    registry: Arc<Registry>,
    pub sync: Sync,
    pub health: HealthAnswers,
    kernel: KernelGauges,
}

/// From a change to the maps.
#[derive(Clone, Debug)]
pub struct Sync {
    duration: Histogram,
    programming: Histogram,
    last: Seconds,
    last_queued: Seconds,
    service_changes: Counter,
    endpoint_changes: Counter,
    services_pending: Gauge,
    endpoints_pending: Gauge,
    no_local: Family<Policy, Gauge>,
    services: Gauge,
}

/// Answers of the health servers.
#[derive(Clone, Debug, Default)]
pub struct HealthAnswers {
    healthz: Family<Code, Counter>,
    livez: Family<Code, Counter>,
}

#[derive(Clone, Debug, Default)]
struct KernelGauges {
    flows: Family<IpFamily, Gauge>,
    unanswered: Family<IpFamily, Gauge>,
    entries: Family<Map, Gauge>,
    capacity: Family<Map, Gauge>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct Policy {
    traffic_policy: &'static str,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct Code {
    code: u16,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct IpFamily {
    family: &'static str,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct Map {
    map: &'static str,
}

impl Metrics {
    /// Reads what the programs count from the maps below `pin_dir`. `per_service` shows how many flows
    /// each service has: one line for each of them.
    pub fn new(pin_dir: PathBuf, warnings: Warnings, per_service: bool) -> Self {
        let mut registry = Registry::default();
        let build = [("version", env!("CARGO_PKG_VERSION"))];
        registry.register("portolan_build", "The version that runs", Info::new(build));
        let sync = Sync::register(&mut registry);
        let health = HealthAnswers {
            healthz: add(
                &mut registry,
                "kubeproxy_proxy_healthz",
                "Answers of /healthz by status",
                Family::default(),
            ),
            livez: add(
                &mut registry,
                "kubeproxy_proxy_livez",
                "Answers of /livez by status",
                Family::default(),
            ),
        };
        let kernel = KernelGauges::register(&mut registry);
        registry.register_collector(Box::new(AtScrape {
            pin_dir,
            warnings,
            per_service,
        }));
        Self {
            registry: Arc::new(registry),
            sync,
            health,
            kernel,
        }
    }

    /// Notes how full the maps are.
    pub fn set_fill(&self, flows: &Occupancy, fills: &[Fill]) {
        for (family, counts) in [("IPv4", &flows.v4), ("IPv6", &flows.v6)] {
            let label = IpFamily { family };
            self.kernel
                .flows
                .get_or_create(&label)
                .set(counts.flows.into());
            self.kernel
                .unanswered
                .get_or_create(&label)
                .set(counts.unanswered.into());
        }
        for fill in fills {
            let label = Map { map: fill.map };
            let entries = self.kernel.entries.get_or_create(&label);
            entries.set(fill.entries.into());
            let capacity = self.kernel.capacity.get_or_create(&label);
            capacity.set(fill.capacity.into());
        }
    }

    /// Everything, in the text format that scrapers read.
    pub fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a string does not fail.
        _ = encode(&mut text, &self.registry);
        text
    }
}

impl Sync {
    fn register(registry: &mut Registry) -> Self {
        // KUBE: kube-proxy's buckets: 1 ms to 16 s, and for what takes longer up to minutes.
        let programming = (0..=1)
            .map(f64::from)
            .map(|step| 0.25 + 0.25 * step)
            .chain((1..60).map(f64::from))
            .chain((60..=300).step_by(30).map(f64::from));
        // Finer below, where we are.
        let fine = [0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1];
        Self {
            duration: add_seconds(
                registry,
                "kubeproxy_sync_proxy_rules_duration",
                "How long a sync took: from changes that are known to the maps",
                Histogram::new(exponential_buckets(0.0001, 2.0, 20)),
            ),
            programming: add_seconds(
                registry,
                "kubeproxy_network_programming_duration",
                "From a change of endpoints, by its trigger time, until packets follow it",
                Histogram::new(fine.into_iter().chain(programming)),
            ),
            last: add_seconds(
                registry,
                "kubeproxy_sync_proxy_rules_last_timestamp",
                "When the maps were last brought in line with the cluster",
                Gauge::default(),
            ),
            last_queued: add_seconds(
                registry,
                "kubeproxy_sync_proxy_rules_last_queued_timestamp",
                "When a change last came",
                Gauge::default(),
            ),
            service_changes: add(
                registry,
                "kubeproxy_sync_proxy_rules_service_changes",
                "Changes of Services that came",
                Counter::default(),
            ),
            endpoint_changes: add(
                registry,
                "kubeproxy_sync_proxy_rules_endpoint_changes",
                "Changes of EndpointSlices that came",
                Counter::default(),
            ),
            services_pending: add(
                registry,
                "kubeproxy_sync_proxy_rules_service_changes_pending",
                "Changes of Services that are not in the maps yet",
                Gauge::default(),
            ),
            endpoints_pending: add(
                registry,
                "kubeproxy_sync_proxy_rules_endpoint_changes_pending",
                "Changes of EndpointSlices that are not in the maps yet",
                Gauge::default(),
            ),
            no_local: add(
                registry,
                "kubeproxy_sync_proxy_rules_no_local_endpoints",
                "Services with a Local traffic policy and endpoints, none of them on this node",
                Family::default(),
            ),
            services: add(
                registry,
                "portolan_services",
                "Services that are served",
                Gauge::default(),
            ),
        }
    }

    /// Changes have come: so many of Services, so many of EndpointSlices.
    pub fn queued(&self, services: usize, endpoints: usize) {
        self.last_queued.set(now());
        self.service_changes.inc_by(services as u64);
        self.endpoint_changes.inc_by(endpoints as u64);
        self.services_pending.inc_by(services as i64);
        self.endpoints_pending.inc_by(endpoints as i64);
    }

    /// All that had come is in the maps. `triggers`: when endpoints changed of which it told.
    pub fn done(&self, took: Duration, triggers: &[Timestamp]) {
        self.duration.observe(took.as_secs_f64());
        self.last.set(now());
        self.services_pending.set(0);
        self.endpoints_pending.set(0);
        let now = Timestamp::now();
        for trigger in triggers {
            let latency = now.duration_since(*trigger).as_secs_f64();
            // The clock of whoever triggered may be ahead.
            self.programming.observe(latency.max(0.0));
        }
    }

    /// How many services there are, and how many of a Local policy have endpoints elsewhere only.
    pub fn set_services(&self, served: usize, no_local_internal: usize, no_local_external: usize) {
        self.services.set(served as i64);
        for (traffic_policy, count) in [
            ("internal", no_local_internal),
            ("external", no_local_external),
        ] {
            let gauge = self.no_local.get_or_create(&Policy { traffic_policy });
            gauge.set(count as i64);
        }
    }
}

impl HealthAnswers {
    pub fn healthz(&self, code: u16) {
        self.healthz.get_or_create(&Code { code }).inc();
    }
    pub fn livez(&self, code: u16) {
        self.livez.get_or_create(&Code { code }).inc();
    }
}

impl KernelGauges {
    fn register(registry: &mut Registry) -> Self {
        Self {
            flows: add(
                registry,
                "portolan_flows",
                "Flows in the flow table",
                Family::default(),
            ),
            unanswered: add(
                registry,
                "portolan_unanswered_flow_entries",
                "Entries of the flow table that nobody has answered",
                Family::default(),
            ),
            entries: add(
                registry,
                "portolan_map_entries",
                "Elements of a map that are in use",
                Family::default(),
            ),
            capacity: add(
                registry,
                "portolan_map_capacity",
                "Elements that a map has room for",
                Family::default(),
            ),
        }
    }
}

/// Has a metric shown under a name.
fn add<M: Metric + Clone>(registry: &mut Registry, name: &str, help: &str, metric: M) -> M {
    registry.register(name, help, metric.clone());
    metric
}

/// The same for one in seconds, which the name then ends with.
fn add_seconds<M: Metric + Clone>(registry: &mut Registry, name: &str, help: &str, metric: M) -> M {
    registry.register_with_unit(name, help, Unit::Seconds, metric.clone());
    metric
}

/// What is looked up when somebody asks.
#[derive(Debug)]
struct AtScrape {
    pin_dir: PathBuf,
    warnings: Warnings,
    per_service: bool,
}

impl Collector for AtScrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let warnings = ConstGauge::new(self.warnings.all().len() as i64);
        let help = "Faults and warnings that hold at present; the log names them";
        let encoded =
            encoder.encode_descriptor("portolan_warnings", help, None, warnings.metric_type())?;
        warnings.encode(encoded)?;
        // What cannot be read is not shown; the agent says elsewhere why.
        let Ok(reader) = Reader::open(&self.pin_dir) else {
            return Ok(());
        };
        if let Ok(counts) = reader.counters() {
            let help = "What became of packets, connections and datagrams, each counted once";
            let kind = ConstCounter::new(0_u64).metric_type();
            let mut family = encoder.encode_descriptor("portolan_packets", help, None, kind)?;
            for (counter, count) in proxy_common::Counter::ALL.iter().zip(counts) {
                let label = [("outcome", counter.name())];
                ConstCounter::new(count).encode(family.encode_family(&label)?)?;
            }
        }
        if self.per_service
            && let Ok(flows) = reader.flows()
        {
            let mut by_service = std::collections::BTreeMap::<String, i64>::new();
            for flow in flows {
                *by_service.entry(flow.service).or_default() += 1;
            }
            let help = "Flows of a service on the packet path";
            let kind = ConstGauge::new(0_i64).metric_type();
            let mut family =
                encoder.encode_descriptor("portolan_service_flows", help, None, kind)?;
            for (service, count) in by_service {
                let label = [("service", service)];
                ConstGauge::new(count).encode(family.encode_family(&label)?)?;
            }
        }
        Ok(())
    }
}

/// Seconds since 1970.
fn now() -> f64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.unwrap_or_default().as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_kube_proxy_measures_has_its_names() {
        let metrics = Metrics::new("/nowhere".into(), Warnings::default(), true);
        metrics.sync.queued(2, 3);
        let text = metrics.text();
        for line in [
            "kubeproxy_sync_proxy_rules_service_changes_total 2",
            "kubeproxy_sync_proxy_rules_endpoint_changes_pending 3",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
        let trigger = Timestamp::now() - Duration::from_millis(1);
        metrics.sync.done(Duration::from_millis(3), &[trigger]);
        metrics.sync.set_services(4, 0, 1);
        metrics.health.healthz(503);
        let text = metrics.text();
        for line in [
            "kubeproxy_sync_proxy_rules_endpoint_changes_pending 0",
            "kubeproxy_sync_proxy_rules_endpoint_changes_total 3",
            "kubeproxy_sync_proxy_rules_duration_seconds_count 1",
            "kubeproxy_sync_proxy_rules_duration_seconds_bucket{le=\"0.0032\"} 1",
            "kubeproxy_network_programming_duration_seconds_count 1",
            "kubeproxy_sync_proxy_rules_no_local_endpoints{traffic_policy=\"external\"} 1",
            "kubeproxy_proxy_healthz_total{code=\"503\"} 1",
            "kubeproxy_sync_proxy_rules_last_timestamp_seconds 1",
            "portolan_services 4",
            "portolan_warnings 0",
            "# EOF",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
    }
}
