// SPDX-License-Identifier: Apache-2.0 OR MIT
//! All metrics, one file per concern; under kube-proxy's names where it has the same. Fed by `agent` and the
//! servers, shown by `server::metrics`.

mod beside;
mod fill;
mod health;
mod repairs;
mod scrape;
mod state;
mod sync;

use std::{path::PathBuf, sync::Arc};

use prometheus_client::{
    encoding::text::encode,
    metrics::info::Info,
    registry::{Metric, Registry, Unit},
};

use crate::{
    datapath::{Fill, Occupancy},
    warnings::Warnings,
};
pub use beside::Beside;
use fill::FillGauges;
pub use health::HealthAnswers;
pub use repairs::Repairs;
use scrape::AtScrape;
pub use state::State;
pub use sync::Sync;

/// All metrics, shared with the servers.
#[derive(Clone, Debug)]
pub struct Metrics {
    registry: Arc<Registry>,
    pub sync: Sync,
    pub health: HealthAnswers,
    pub beside: Beside,
    pub repairs: Repairs,
    pub state: State,
    fill: FillGauges,
}

impl Metrics {
    /// The kernel programs' counters are read from the maps below `pin_dir`. With `per_service` the number of
    /// flows of each service is shown too: one line per service.
    pub fn new(pin_dir: PathBuf, warnings: Warnings, per_service: bool) -> Self {
        let mut registry = Registry::default();
        let build = [("version", env!("CARGO_PKG_VERSION"))];
        registry.register("portolan_build", "The running version", Info::new(build));
        let sync = Sync::register(&mut registry);
        let health = HealthAnswers::register(&mut registry);
        let beside = Beside::register(&mut registry);
        let repairs = Repairs::register(&mut registry);
        let state = State::register(&mut registry);
        let fill = FillGauges::register(&mut registry);
        registry.register_collector(Box::new(AtScrape {
            pin_dir,
            warnings,
            per_service,
        }));
        Self {
            registry: Arc::new(registry),
            sync,
            health,
            beside,
            repairs,
            state,
            fill,
        }
    }

    /// Shows how full the flow tables and the maps of plans are.
    pub fn set_fill(&self, flows: &Occupancy, fills: &[Fill]) {
        self.fill.set(flows, fills);
    }
    /// Shows how full other maps are.
    pub fn set_fills(&self, fills: &[Fill]) {
        self.fill.set_maps(fills);
    }

    /// Larger maps are used from now on.
    pub fn count_growth(&self) {
        self.fill.count_growth();
    }

    /// All metrics in the text format that scrapers read.
    pub fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a string does not fail.
        _ = encode(&mut text, &self.registry);
        text
    }
}

/// Registers a metric under a name.
fn add<M: Metric + Clone>(registry: &mut Registry, name: &str, help: &str, metric: M) -> M {
    registry.register(name, help, metric.clone());
    metric
}

/// The same for a metric in seconds: the name gets the suffix `_seconds`.
fn add_seconds<M: Metric + Clone>(registry: &mut Registry, name: &str, help: &str, metric: M) -> M {
    registry.register_with_unit(name, help, Unit::Seconds, metric.clone());
    metric
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use k8s_openapi::jiff::Timestamp;

    use super::*;
    use crate::{datapath::RepairKind, model::Kind};

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
        metrics.beside.set(2, 3);
        metrics.repairs.count(RepairKind::Hook);
        metrics.state.set_failed_services(2);
        metrics.state.set_attached((5, 4), (11, 11));
        metrics.state.heard_of(Kind::EndpointSlice);
        let mut flows = Occupancy::default();
        flows.v6.entries = 3;
        metrics.set_fill(&flows, &[]);
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
            "portolan_foreign_programs_before 2",
            "portolan_interfaces_left_to_stack 3",
            "portolan_repairs_total{kind=\"hook\"} 1",
            "portolan_services_failed 2",
            "portolan_interfaces_wanted 5",
            "portolan_interfaces_attached 4",
            "portolan_hooks_attached 11",
            "portolan_watch_last_event_timestamp_seconds{kind=\"EndpointSlice\"} 1",
            "portolan_map_entries{map=\"flows_v6\"} 3",
            "portolan_repairs_total{kind=\"interface\"} 0",
            "# EOF",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
    }
}
