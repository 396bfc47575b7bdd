// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The settings in force, shown at `/configz` of the server at `metricsBindAddress`. Set by
//! `agent`; `metrics` serves them.

use std::sync::{Arc, Mutex, PoisonError};

use axum::{Json, response::IntoResponse};
use serde_json::{Value, json};

/// The settings in force, shared by the agent's loop and the HTTP server: in the form of a
/// configuration file, and where each comes from (`flag` or `file`), without those that have their
/// default.
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
    pub(super) fn answer(&self) -> impl IntoResponse + use<> {
        let [document, sources] = &*self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Json(json!({
            "kubeproxy.config.k8s.io": document,
            "portolan": {"version": env!("CARGO_PKG_VERSION"), "sources": sources},
        }))
    }
}
