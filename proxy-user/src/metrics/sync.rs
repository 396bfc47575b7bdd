// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How long changes take to reach the maps, and how many wait. Fed by `agent`.

use std::time::{Duration, SystemTime};

use k8s_openapi::jiff::Timestamp;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{
        counter::Counter,
        family::Family,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
    },
    registry::Registry,
};

use super::{add, add_seconds};

pub(super) type Seconds = Gauge<f64, std::sync::atomic::AtomicU64>;

/// The way of changes to the maps, as kube-proxy calls it: syncs of proxy rules.
#[derive(Clone, Debug)]
pub struct Sync {
    duration: Histogram,
    turns: Family<Turn, Histogram>,
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

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct Policy {
    traffic_policy: &'static str,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct Turn {
    kind: &'static str,
}

impl Sync {
    pub(super) fn register(registry: &mut Registry) -> Self {
        // KUBE: kube-proxy's buckets, from 0.25 s to five minutes.
        let programming = (0..=1)
            .map(f64::from)
            .map(|step| 0.25 + 0.25 * step)
            .chain((1..60).map(f64::from))
            .chain((60..=300).step_by(30).map(f64::from));
        // Smaller ones in front: most changes take a few milliseconds here.
        let fine = [0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1];
        Self {
            duration: add_seconds(
                registry,
                "kubeproxy_sync_proxy_rules_duration",
                "Duration of one sync, which writes all known changes into the maps",
                Histogram::new(exponential_buckets(0.0001, 2.0, 20)),
            ),
            turns: add_seconds(
                registry,
                "portolan_turn_duration",
                "Time that the agent spent on one thing, such as a part of a sync: every other change waits so long",
                Family::new_with_constructor(|| {
                    Histogram::new(exponential_buckets(0.0001, 2.0, 18))
                }),
            ),
            programming: add_seconds(
                registry,
                "kubeproxy_network_programming_duration",
                "Time from a change of endpoints (its trigger time) until it is in the maps",
                Histogram::new(fine.into_iter().chain(programming)),
            ),
            last: add_seconds(
                registry,
                "kubeproxy_sync_proxy_rules_last_timestamp",
                "Time of the last complete sync",
                Gauge::default(),
            ),
            last_queued: add_seconds(
                registry,
                "kubeproxy_sync_proxy_rules_last_queued_timestamp",
                "Time of the last change received",
                Gauge::default(),
            ),
            service_changes: add(
                registry,
                "kubeproxy_sync_proxy_rules_service_changes",
                "Changes of Services received",
                Counter::default(),
            ),
            endpoint_changes: add(
                registry,
                "kubeproxy_sync_proxy_rules_endpoint_changes",
                "Changes of EndpointSlices received",
                Counter::default(),
            ),
            services_pending: add(
                registry,
                "kubeproxy_sync_proxy_rules_service_changes_pending",
                "Changes of Services not in the maps yet",
                Gauge::default(),
            ),
            endpoints_pending: add(
                registry,
                "kubeproxy_sync_proxy_rules_endpoint_changes_pending",
                "Changes of EndpointSlices not in the maps yet",
                Gauge::default(),
            ),
            no_local: add(
                registry,
                "kubeproxy_sync_proxy_rules_no_local_endpoints",
                "Services with traffic policy Local whose endpoints are all on other nodes",
                Family::default(),
            ),
            services: add(
                registry,
                "portolan_services",
                "Services served",
                Gauge::default(),
            ),
        }
    }

    /// The agent has spent so long on one thing of a kind.
    pub fn turned(&self, kind: &'static str, elapsed: Duration) {
        let turns = self.turns.get_or_create(&Turn { kind });
        turns.observe(elapsed.as_secs_f64());
    }

    /// Counts changes received: of Services and of EndpointSlices.
    pub fn queued(&self, services: usize, endpoints: usize) {
        self.last_queued.set(now());
        self.service_changes.inc_by(services as u64);
        self.endpoint_changes.inc_by(endpoints as u64);
        self.services_pending.inc_by(services as i64);
        self.endpoints_pending.inc_by(endpoints as i64);
    }

    /// All changes received are in the maps. `triggers`: trigger times of the endpoint changes among them.
    pub fn done(&self, took: Duration, triggers: &[Timestamp]) {
        self.duration.observe(took.as_secs_f64());
        self.last.set(now());
        self.services_pending.set(0);
        self.endpoints_pending.set(0);
        let now = Timestamp::now();
        for trigger in triggers {
            let latency = now.duration_since(*trigger).as_secs_f64();
            // The trigger's clock may be ahead of ours.
            self.programming.observe(latency.max(0.0));
        }
    }

    /// The number of services served, and of those with an internal or external policy Local whose endpoints
    /// are all on other nodes.
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

/// Seconds since 1970.
pub(super) fn now() -> f64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.unwrap_or_default().as_secs_f64()
}
