// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Metrics of how long changes take to reach the maps, and how many wait. Fed by `agent`.

use std::time::{Duration, SystemTime};

use control::change::Trigger;
use k8s_openapi::jiff::Timestamp;
use prometheus_client::{
    metrics::{
        counter::Counter,
        family::Family,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
    },
    registry::Registry,
};

use super::{Label, metrics};

pub(super) type Seconds = Gauge<f64, std::sync::atomic::AtomicU64>;

metrics! {
    /// Metrics of the syncs, which write changes of services into the maps. kube-proxy's name for
    /// it: sync of proxy rules.
    ///
    /// KUBE: kube-proxy syncs each IP family by itself. Here one sync writes both, so it counts for
    /// both.
    Sync {
        duration: Histograms, "kubeproxy_sync_proxy_rules_duration",
            "Duration of one sync, which writes all known changes into the maps",
            Histograms::new_with_constructor(durations);
        turns: Histograms, "portolan_turn_duration",
            "Time that the agent spent on one thing, such as a part of a sync: every other change waits so long",
            Histograms::new_with_constructor(|| Histogram::new(exponential_buckets(0.0001, 2.0, 18)));
        programming: Histograms, "kubeproxy_network_programming_duration",
            "Time from a change of endpoints (its trigger time) until it is in the maps",
            Histograms::new_with_constructor(latencies);
        last: Family<Label, Seconds>, "kubeproxy_sync_proxy_rules_last_timestamp",
            "Time of the last complete sync", Family::default();
        last_queued: Family<Label, Seconds>, "kubeproxy_sync_proxy_rules_last_queued_timestamp",
            "Time of the last change received", Family::default();
        service_changes: Counter, "kubeproxy_sync_proxy_rules_service_changes",
            "Changes of Services received";
        endpoint_changes: Counter, "kubeproxy_sync_proxy_rules_endpoint_changes",
            "Changes of EndpointSlices received";
        services_pending: Gauge, "kubeproxy_sync_proxy_rules_service_changes_pending",
            "Changes of Services not in the maps yet";
        endpoints_pending: Gauge, "kubeproxy_sync_proxy_rules_endpoint_changes_pending",
            "Changes of EndpointSlices not in the maps yet";
        no_local: Family<[(&'static str, &'static str); 2], Gauge>,
            "kubeproxy_sync_proxy_rules_no_local_endpoints_total",
            "Services with traffic policy Local whose endpoints are all on other nodes";
        services: Gauge, "portolan_services", "Services served";
        weighted: Gauge, "portolan_services_weighted",
            "Services and Gateways of which some endpoints have another weight than 1";
    }
}

/// One histogram for each value of a label; the function makes its buckets.
type Histograms = Family<Label, Histogram, fn() -> Histogram>;

const V4: Label = [("ip_family", "IPv4")];
const V6: Label = [("ip_family", "IPv6")];

/// Histogram of how long syncs take. KUBE: kube-proxy's buckets, from 1 ms to 16 s, with smaller
/// ones in front: most syncs take less than a millisecond here.
fn durations() -> Histogram {
    Histogram::new(exponential_buckets(0.000_125, 2.0, 18))
}

/// Histogram of the time from a change to its sync. KUBE: kube-proxy's buckets, from 0.25 s to five
/// minutes, with smaller ones in front.
fn latencies() -> Histogram {
    let fine = [0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5];
    let coarse = (1..60)
        .chain((60..120).step_by(5))
        .chain((120..=300).step_by(30));
    Histogram::new(fine.into_iter().chain(coarse.map(f64::from)))
}

impl Sync {
    /// Records how long the agent's loop has spent on one event. `kind`: the event's name.
    pub fn turned(&self, kind: &'static str, elapsed: Duration) {
        let turns = self.turns.get_or_create(&[("kind", kind)]);
        turns.observe(elapsed.as_secs_f64());
    }

    /// Counts received changes: `services` of Services, and `endpoints` of EndpointSlices.
    pub fn queued(&self, services: usize, endpoints: usize) {
        for family in [V4, V6] {
            self.last_queued.get_or_create(&family).set(now());
        }
        self.service_changes.inc_by(services as u64);
        self.endpoint_changes.inc_by(endpoints as u64);
        self.services_pending.inc_by(services as i64);
        self.endpoints_pending.inc_by(endpoints as i64);
    }

    /// Records that all received changes are in the maps. `took`: the duration of the sync;
    /// `triggers`: when the pods or services changed that caused the endpoint changes among them.
    pub fn done(&self, took: Duration, triggers: &[Trigger]) {
        for family in [V4, V6] {
            let duration = self.duration.get_or_create(&family);
            duration.observe(took.as_secs_f64());
            self.last.get_or_create(&family).set(now());
        }
        self.services_pending.set(0);
        self.endpoints_pending.set(0);
        let now = Timestamp::now();
        for trigger in triggers {
            let latency = now.duration_since(trigger.time).as_secs_f64();
            // The clock of the node that set the trigger time may be ahead of this node's.
            let family = if trigger.v6 { V6 } else { V4 };
            let programming = self.programming.get_or_create(&family);
            programming.observe(latency.max(0.0));
        }
    }

    /// Sets the number of services served, of those with weights, and of those with policy Local
    /// whose endpoints are all on other nodes. `no_local`: internal IPv4, internal IPv6, external
    /// IPv4, external IPv6.
    pub fn set_services(&self, served: usize, weighted: usize, no_local: [usize; 4]) {
        self.services.set(served as i64);
        self.weighted.set(weighted as i64);
        let policies = ["internal", "external"].into_iter();
        let labels = policies
            .flat_map(|policy| [V4, V6].map(|[ip_family]| [("traffic_policy", policy), ip_family]));
        for (label, count) in labels.zip(no_local) {
            self.no_local.get_or_create(&label).set(count as i64);
        }
    }
}

/// Returns the present time in seconds since 1970.
pub(super) fn now() -> f64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.unwrap_or_default().as_secs_f64()
}
