// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `/healthz` and `/livez`: whether the maps are up to date, and which version of the Node object is applied. Set
//! by `agent` after every sync.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant, SystemTime},
};

use axum::{Json, Router, http::StatusCode, response::IntoResponse, routing::get};
use k8s_openapi::jiff::Timestamp;
use serde::Serialize;

use crate::metrics::HealthAnswers;

/// KUBE: twice kube-proxy's sync period. A change that waits longer is a fault.
const PATIENCE: Duration = Duration::from_secs(60);

/// The agent's health, shared with the servers.
#[derive(Clone, Debug, Default)]
pub struct Health(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    last_updated: Option<Timestamp>,
    /// Since when some change has not been applied.
    pending: Option<Instant>,
    node: Option<AppliedNode>,
    ineligible: bool,
    /// Why objects cannot be followed at present.
    source_fault: Option<String>,
}

/// The Node object in the last applied state.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AppliedNode {
    pub name: String,
    pub resource_version: String,
}

/// KUBE: the fields of kube-proxy's answer, and more.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Answer {
    last_updated: Option<Timestamp>,
    current_time: Timestamp,
    node_eligible: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    node: Option<AppliedNode>,
    #[serde(skip_serializing_if = "Option::is_none")]
    source_fault: Option<String>,
}

impl Health {
    fn state<T>(&self, use_it: impl FnOnce(&mut State) -> T) -> T {
        use_it(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
    /// Changes have arrived that are not applied yet.
    pub fn set_pending(&self) {
        self.state(|state| _ = state.pending.get_or_insert_with(Instant::now));
    }
    /// Objects cannot be followed, or can again. KUBE: this does not make the node unhealthy.
    pub fn set_source_fault(&self, fault: Option<String>) {
        self.state(|state| state.source_fault = fault);
    }
    /// All known changes are applied.
    pub fn set_applied(&self, node: Option<AppliedNode>, eligible: bool) {
        self.state(|state| {
            state.last_updated = Some(now());
            state.pending = None;
            state.node = node;
            state.ineligible = !eligible;
        });
    }
    /// Whether the maps are up to date.
    pub fn is_healthy(&self) -> bool {
        self.state(|state| {
            let waiting = state
                .pending
                .is_some_and(|since| since.elapsed() > PATIENCE);
            state.last_updated.is_some() && !waiting
        })
    }

    fn answer(&self, counts_eligibility: bool) -> (StatusCode, Json<Answer>) {
        let healthy = self.is_healthy();
        self.state(|state| {
            let eligible = !state.ineligible;
            let code = if healthy && (eligible || !counts_eligibility) {
                StatusCode::OK
            } else {
                StatusCode::SERVICE_UNAVAILABLE
            };
            let answer = Answer {
                last_updated: state.last_updated,
                current_time: now(),
                node_eligible: eligible,
                node: state.node.clone(),
                source_fault: state.source_fault.clone(),
            };
            (code, Json(answer))
        })
    }
}

/// A clock before 1970 reads as 1970.
fn now() -> Timestamp {
    let since = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    let seconds = i64::try_from(since.as_secs()).unwrap_or_default();
    let nanoseconds = i32::try_from(since.subsec_nanos()).unwrap_or_default();
    Timestamp::new(seconds, nanoseconds).unwrap_or_default()
}

/// Routes of `healthzBindAddress`.
pub fn router(health: Health, answers: HealthAnswers) -> Router {
    // KUBE: on a node that is about to be deleted, /healthz sends load balancers away. The kubelet must not restart
    // the agent because of /livez.
    let (alive, counted) = (health.clone(), answers.clone());
    Router::new()
        .route(
            "/healthz",
            get(async move || {
                let answer = health.answer(true);
                answers.healthz(answer.0.as_u16());
                answer.into_response()
            }),
        )
        .route(
            "/livez",
            get(async move || {
                let answer = alive.answer(false);
                counted.livez(answer.0.as_u16());
                answer.into_response()
            }),
        )
}
