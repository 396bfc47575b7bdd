// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The HTTP server at `metricsBindAddress`, with `/metrics`, `/configz`, `/warnings`, `/healthz`
//! and `/proxyMode`.

use axum::{Json, Router, http::header, routing::get};
use control::warnings::Warnings;

use super::configz::Configz;
use crate::metrics::Metrics;

const TEXT: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Returns the HTTP handlers of the server at `metricsBindAddress`.
pub fn router(metrics: Metrics, configz: Configz, warnings: Warnings) -> Router {
    Router::new()
        .route(
            "/metrics",
            get(async move || ([(header::CONTENT_TYPE, TEXT)], metrics.text())),
        )
        .route("/configz", get(async move || configz.answer()))
        // `portolan warnings` reads this.
        .route("/warnings", get(async move || Json(warnings.named())))
        // KUBE: kube-proxy has /healthz at this server, too; it only says that the process answers.
        .route("/healthz", get(async || "ok"))
        // KUBE: kube-proxy answers with the name of its mode.
        .route("/proxyMode", get(async || "ebpf"))
}
