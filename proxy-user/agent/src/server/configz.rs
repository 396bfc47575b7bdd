// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The settings in force, at `/configz` of `metricsBindAddress`. Set by `agent`, served by
//! `metrics`.

use std::sync::{Arc, Mutex, PoisonError};

use axum::{Json, response::IntoResponse};
use serde_json::{Value, json};

/// What `/configz` answers.
#[derive(Clone, Debug, Default)]
struct InForce {
    /// As a file has it.
    document: Value,
    /// Where settings come from, by key: `flag` or `file`. The others have their defaults.
    sources: Value,
}

/// The settings in force, shared with the server.
#[derive(Clone, Debug, Default)]
pub struct Configz(Arc<Mutex<InForce>>);

impl Configz {
    /// Replaces the configuration, as a file has it, and where its settings come from.
    pub fn set(&self, document: Value, sources: Value) {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *held = InForce { document, sources };
    }

    /// KUBE: kube-proxy's answer, under the name of its API group; and what only portolan says.
    pub(super) fn answer(&self) -> impl IntoResponse + use<> {
        let held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Json(json!({
            "kubeproxy.config.k8s.io": held.document,
            "portolan": {"version": env!("CARGO_PKG_VERSION"), "sources": held.sources},
        }))
    }
}
