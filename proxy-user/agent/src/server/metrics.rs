// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The HTTP server at `metricsBindAddress`, with `/metrics`, `/configz`, `/warnings`, `/healthz`
//! and `/proxyMode`.

use std::sync::{Arc, Mutex, PoisonError};

use axum::{
    Json, Router,
    http::{StatusCode, header},
    response::IntoResponse,
    routing::get,
};
use control::warnings::Warnings;
use serde_json::{Value, json};
use tokio::task::spawn_blocking;

use crate::metrics::Metrics;

const TEXT: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The settings in force, shown at `/configz`; shared by the agent's loop and the HTTP server: in
/// the form of a configuration file, and where each comes from (`flag` or `file`), without those
/// that have their default.
#[derive(Clone, Debug, Default)]
pub struct Configz(Arc<Mutex<[Value; 2]>>);

impl Configz {
    /// Replaces the shown settings. `document`: in the form of a configuration file; `sources`:
    /// where each setting comes from.
    pub fn set(&self, document: Value, sources: Value) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = [document, sources];
    }

    /// Returns the answer at `/configz`. KUBE: kube-proxy's part, under its API group's name; and
    /// portolan's own part.
    fn answer(&self) -> impl IntoResponse + use<> {
        let [document, sources] = &*self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Json(json!({
            "kubeproxy.config.k8s.io": document,
            "portolan": {"version": env!("CARGO_PKG_VERSION"), "sources": sources},
        }))
    }
}

/// Collects the metrics on a thread of its own: with large flow tables that takes long, and the
/// probes of the kubelet and of load balancers must be answered meanwhile.
async fn scrape(metrics: Metrics) -> Result<impl IntoResponse, StatusCode> {
    let text = spawn_blocking(move || metrics.text()).await;
    let text = text.map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)?;
    Ok(([(header::CONTENT_TYPE, TEXT)], text))
}

/// Returns the HTTP handlers of the server at `metricsBindAddress`.
pub fn router(metrics: Metrics, configz: Configz, warnings: Warnings) -> Router {
    Router::new()
        .route("/metrics", get(async move || scrape(metrics.clone()).await))
        .route("/configz", get(async move || configz.answer()))
        // `portolan warnings` reads this.
        .route("/warnings", get(async move || Json(warnings.named())))
        // KUBE: kube-proxy has /healthz at this server, too; it only says that the process answers.
        .route("/healthz", get(async || "ok"))
        // KUBE: kube-proxy answers with the name of its mode.
        .route("/proxyMode", get(async || "ebpf"))
}
