// SPDX-License-Identifier: Apache-2.0 OR MIT
//! All metrics, one file per concern; with kube-proxy's names where kube-proxy has the same metric.
//! Fed by `agent` and the servers, shown by `server::metrics`.

#[cfg(any(test, feature = "pages"))]
mod kube_proxy;
#[cfg(any(test, feature = "pages"))]
pub mod page;
mod scrape;
mod services;
mod state;
mod sync;

use std::{path::PathBuf, sync::Arc};

use control::{syncer::ReadyEndpoints, warnings::Warnings};
use prometheus_client::{
    encoding::text::encode,
    metrics::info::Info,
    registry::{Metric, Registry, Unit},
};
use scrape::{AtScrape, Process};
use services::ServiceMetrics;
use source::api_server::Requests;
pub use state::{Answers, HealthAnswers, State};
pub use sync::Sync;

/// The label of a metric: its name and value.
type Label = [(&'static str, &'static str); 1];

/// Defines metrics, each with its type, name and help text. One in seconds also has its first
/// value, and its name gets the suffix `_seconds`.
macro_rules! metrics {
    ($(#[$about:meta])* $group:ident {
        $($field:ident: $type:ty, $name:literal, $help:literal $(, $metric:expr)?;)*
    }) => {
        $(#[$about])*
        #[derive(Clone, Debug)]
        pub struct $group {
            $(pub $field: $type,)*
        }

        impl $group {
            pub(super) fn register(registry: &mut Registry) -> Self {
                Self {
                    $($field: metrics!(@register registry, $name, $help $(, $metric)?),)*
                }
            }
        }
    };
    (@register $registry:ident, $name:literal, $help:literal) => {
        $crate::metrics::add($registry, $name, $help)
    };
    (@register $registry:ident, $name:literal, $help:literal, $metric:expr) => {
        $crate::metrics::add_seconds($registry, $name, $help, $metric)
    };
}
use metrics;

/// All metrics of the agent. Clones share the same values, so that the servers can have one.
#[derive(Clone, Debug)]
pub struct Metrics {
    registry: Arc<Registry>,
    pub sync: Sync,
    pub health: HealthAnswers,
    pub state: State,
}

impl Metrics {
    /// Registers all metrics. The eBPF programs' counters are read from the maps below `pin_dir`.
    /// At most `services` services have metrics of their own; `ready`: their endpoints.
    pub fn new(
        pin_dir: PathBuf,
        warnings: Warnings,
        requests: &Requests,
        services: u32,
        ready: ReadyEndpoints,
    ) -> Self {
        let mut registry = Registry::default();
        let build = [("version", env!("CARGO_PKG_VERSION"))];
        registry.register("portolan_build", "The running version", Info::new(build));
        let sync = Sync::register(&mut registry);
        let health = HealthAnswers::register(&mut registry);
        let state = State::register(&mut registry).starting();
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
        registry.register(
            "portolan_watches_silent",
            "Watches on a kind of objects in which nothing came for three minutes, and which were listed again",
            requests.silences.clone(),
        );
        registry.register_collector(Box::new(Process));
        registry.register_collector(Box::new(AtScrape {
            pin_dir,
            warnings,
            services: ServiceMetrics::new(services, ready),
        }));
        Self {
            registry: Arc::new(registry),
            sync,
            health,
            state,
        }
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
