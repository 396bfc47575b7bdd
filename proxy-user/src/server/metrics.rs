// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `/metrics` and `/proxyMode` of `metricsBindAddress`.

use axum::{Router, http::header, routing::get};

use crate::metrics::Metrics;

const TEXT: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Routes of `metricsBindAddress`.
pub fn router(metrics: Metrics) -> Router {
    Router::new()
        .route(
            "/metrics",
            get(async move || ([(header::CONTENT_TYPE, TEXT)], metrics.text())),
        )
        // KUBE: kube-proxy answers the name of its mode.
        .route("/proxyMode", get(async || "ebpf"))
}
