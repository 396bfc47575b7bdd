// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The settings in force, at `/configz` of `metricsBindAddress`. Set by `agent`, served by `metrics`.

use std::sync::{Arc, Mutex, PoisonError};

use axum::{Json, response::IntoResponse};
use serde_json::{Value, json};

/// The settings in force, shared with the server.
#[derive(Clone, Debug, Default)]
pub struct Configz(Arc<Mutex<Value>>);

impl Configz {
    /// Replaces the configuration, as a file has it.
    pub fn set(&self, document: Value) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = document;
    }

    /// KUBE: kube-proxy's answer, under the name of its API group.
    pub(super) fn answer(&self) -> impl IntoResponse + use<> {
        let document = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Json(json!({"kubeproxy.config.k8s.io": *document}))
    }
}
