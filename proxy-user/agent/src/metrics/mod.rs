// SPDX-License-Identifier: Apache-2.0 OR MIT
//! All metrics, one file per concern; with kube-proxy's names where kube-proxy has the same metric.
//! Fed by `agent` and the servers, shown by `server::metrics`.

mod ended;
mod fill;
mod foreign;
mod health;
#[cfg(any(test, feature = "pages"))]
mod kube_proxy;
#[cfg(any(test, feature = "pages"))]
pub mod page;
mod process;
mod repairs;
mod scrape;
mod state;
mod sync;

use std::{path::PathBuf, sync::Arc};

use control::{apply::Fill, warnings::Warnings};
use datapath::Occupancy;
pub use ended::EndedConnections;
use fill::FillGauges;
pub use foreign::ForeignGauges;
pub use health::HealthAnswers;
use prometheus_client::{
    encoding::text::encode,
    metrics::info::Info,
    registry::{Metric, Registry, Unit},
};
pub use repairs::Repairs;
use scrape::AtScrape;
use source::api_server::Requests;
pub use state::State;
pub use sync::Sync;

/// All metrics of the agent. Clones share the same values, so that the servers can have one.
#[derive(Clone, Debug)]
pub struct Metrics {
    registry: Arc<Registry>,
    pub sync: Sync,
    pub health: HealthAnswers,
    pub foreign: ForeignGauges,
    pub repairs: Repairs,
    pub ended: EndedConnections,
    pub state: State,
    fill: FillGauges,
}

impl Metrics {
    /// Registers all metrics. The eBPF programs' counters are read from the maps below `pin_dir`.
    /// `per_service` adds the number of flows of each service, one line per service.
    pub fn new(
        pin_dir: PathBuf,
        warnings: Warnings,
        requests: &Requests,
        per_service: bool,
    ) -> Self {
        let mut registry = Registry::default();
        let build = [("version", env!("CARGO_PKG_VERSION"))];
        registry.register("portolan_build", "The running version", Info::new(build));
        let sync = Sync::register(&mut registry);
        let health = HealthAnswers::register(&mut registry);
        let foreign = ForeignGauges::register(&mut registry);
        let repairs = Repairs::register(&mut registry);
        let ended = EndedConnections::register(&mut registry);
        let state = State::register(&mut registry);
        let fill = FillGauges::register(&mut registry);
        registry.register(
            "rest_client_requests",
            "Requests to the API server by status, method and host",
            requests.answers.clone(),
        );
        add_seconds(
            &mut registry,
            "rest_client_request_duration",
            "Time until the API server answers, watches left out",
            requests.durations.clone(),
        );
        add_seconds(
            &mut registry,
            "portolan_watch_last_byte_timestamp",
            "Time of the last byte from the API server in the watch on a kind of objects; without changes the server sends a bookmark each minute",
            requests.last_bytes.clone(),
        );
        registry.register_collector(Box::new(process::Process));
        registry.register_collector(Box::new(AtScrape {
            pin_dir,
            warnings,
            per_service,
        }));
        Self {
            registry: Arc::new(registry),
            sync,
            health,
            foreign,
            repairs,
            ended,
            state,
            fill,
        }
    }

    /// Sets how full the flow tables (`flows`) and the maps that hold services (`fills`) are.
    pub fn set_fill(&self, flows: &Occupancy, fills: &[Fill]) {
        self.fill.set(flows, fills);
    }
    /// Sets how full the maps in `fills` are.
    pub fn set_fills(&self, fills: &[Fill]) {
        self.fill.set_maps(fills);
    }

    /// Counts one growth: larger maps were made, and will replace those in use.
    pub fn count_growth(&self) {
        self.fill.count_growth();
    }

    /// Returns all metrics in the text format that Prometheus reads.
    pub fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a string does not fail.
        _ = encode(&mut text, &self.registry);
        text
    }
}

/// Registers a metric under a name with a help text, and returns it.
fn add<M: Metric + Clone + Default>(registry: &mut Registry, name: &str, help: &str) -> M {
    let metric = M::default();
    registry.register(name, help, metric.clone());
    metric
}

/// Registers a metric in seconds, and returns it: its name gets the suffix `_seconds`.
fn add_seconds<M: Metric + Clone>(registry: &mut Registry, name: &str, help: &str, metric: M) -> M {
    registry.register_with_unit(name, help, Unit::Seconds, metric.clone());
    metric
}

#[cfg(test)]
mod tests;
