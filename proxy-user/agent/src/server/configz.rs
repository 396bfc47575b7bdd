// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The settings in force, at `/configz` of `metricsBindAddress`. Set by `agent`, served by
//! `metrics`.

use std::sync::{Arc, Mutex, PoisonError};

use axum::{Json, response::IntoResponse};
use serde_json::{Value, json};

/// The contents of the answer at `/configz`.
#[derive(Clone, Debug, Default)]
struct InForce {
    /// The settings in the form of a configuration file.
    document: Value,
    /// The source of settings, by key: `flag` or `file`. Other settings have their defaults.
    sources: Value,
}

/// The settings in force, shared with the server.
#[derive(Clone, Debug, Default)]
pub struct Configz(Arc<Mutex<InForce>>);

impl Configz {
    /// Replaces the configuration (in the form of a file) and the sources of its settings.
    pub fn set(&self, document: Value, sources: Value) {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *held = InForce { document, sources };
    }

    /// Returns the answer. KUBE: kube-proxy's, under its API group's name; and portolan's own part.
    pub(super) fn answer(&self) -> impl IntoResponse + use<> {
        let held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Json(json!({
            "kubeproxy.config.k8s.io": held.document,
            "portolan": {"version": env!("CARGO_PKG_VERSION"), "sources": held.sources},
        }))
    }
}
