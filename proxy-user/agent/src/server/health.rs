// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The HTTP answers of `/healthz` (whether the node serves, what is wrong with it and with single
//! services, and which version of the Node object is applied) and `/livez` (whether the agent's
//! loop still runs). Fed by `agent`; `status` decides.

mod status;

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};

use axum::{Json, Router, http::StatusCode, response::IntoResponse, routing::get};
use control::object::Warning;
use k8s_openapi::jiff::Timestamp;
use serde::Serialize;

use self::status::{Facts, illness, is_alive};
use crate::metrics::{Answers, HealthAnswers};
pub use status::Area;

const INELIGIBLE: &str = "there is no Node object of this name, it is being deleted, or the autoscaler is about to remove the node";

/// How many faults an answer lists; `faultCount` has the number of all.
const NAMED: usize = 100;
/// How many faults an event at the Node object lists.
const TOLD: usize = 3;

/// The agent's health, shared by its loop and the HTTP servers.
#[derive(Clone, Debug, Default)]
pub struct Health(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    last_updated: Option<Timestamp>,
    facts: Facts,
    node: Option<AppliedNode>,
    /// True if load balancers may send clients to this node. KUBE: false before the Node object is
    /// seen.
    eligible: bool,
    /// Why the API server's objects cannot be followed at present; `None` if they can.
    source_fault: Option<String>,
}

impl State {
    fn answer(&self) -> Answer {
        let seconds = |since: Instant| since.elapsed().as_secs();
        let faults = self.facts.faults.first(NAMED);
        let faults = faults.into_iter().map(|(object, fault)| Named {
            object: object.to_owned(),
            reason: fault.reason.clone(),
            age_seconds: seconds(fault.since),
        });
        Answer {
            version: env!("CARGO_PKG_VERSION"),
            last_updated: self.last_updated,
            current_time: Timestamp::now(),
            node_eligible: self.eligible,
            node: self.node.clone(),
            source_fault: self.source_fault.clone(),
            reason: None,
            fault_count: self.facts.faults.count(),
            faults: faults.collect(),
            seconds_since_last_turn: seconds(self.facts.turned),
        }
    }
}

/// The name and version of the Node object that the last complete sync has applied.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AppliedNode {
    pub name: String,
    pub resource_version: String,
}

/// The answer of `/healthz` and `/livez`. KUBE: kube-proxy's fields, and more.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Answer {
    version: &'static str,
    last_updated: Option<Timestamp>,
    current_time: Timestamp,
    node_eligible: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    node: Option<AppliedNode>,
    #[serde(skip_serializing_if = "Option::is_none")]
    source_fault: Option<String>,
    /// Why the HTTP status is not 200; left out if it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
    /// The number of all faults, including those too young to change the HTTP status.
    fault_count: usize,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    faults: Vec<Named>,
    seconds_since_last_turn: u64,
}

/// A fault as it is listed in an answer.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Named {
    object: String,
    reason: String,
    age_seconds: u64,
}

impl Health {
    fn state<T>(&self, use_it: impl FnOnce(&mut State) -> T) -> T {
        use_it(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
    /// Records that the agent's loop begins a turn, so that it does not hang.
    pub fn turn(&self) {
        self.state(|state| state.facts.turned = Instant::now());
    }
    /// Records that changes have arrived and wait to be applied.
    pub fn set_pending(&self) {
        self.state(|state| _ = state.facts.pending.get_or_insert_with(Instant::now));
    }
    /// Replaces the faults of one area of the agent. Empty `faults` remove all faults of the area.
    pub fn set_faults<'a>(&self, area: Area, faults: impl IntoIterator<Item = &'a Warning>) {
        let faults = faults.into_iter();
        let faults = faults.map(|fault| (fault.object.clone(), fault.reason.clone()));
        self.state(|state| state.facts.faults.replace(area, faults, Instant::now()));
    }
    /// Records why the API server's objects cannot be followed; `None` if they can. KUBE: this does
    /// not make the node unhealthy.
    pub fn set_source_fault(&self, fault: Option<String>) {
        self.state(|state| state.source_fault = fault);
    }
    /// Records that all known changes are applied, except for those that are now faults.
    /// `eligible`: whether load balancers may send clients to this node.
    pub fn set_applied(&self, node: Option<AppliedNode>, eligible: bool) {
        self.state(|state| {
            state.last_updated = Some(Timestamp::now());
            (state.facts.is_listed, state.facts.pending) = (true, None);
            state.node = node;
            state.eligible = eligible;
        });
    }
    /// True if this service (`Service namespace/name`) is served as it should be. Faults of other
    /// services do not count: they would make every node refuse this service at the same time.
    pub fn serves(&self, service: &str) -> bool {
        self.state(|state| illness(&state.facts, Instant::now(), Some(service)).is_none())
    }

    /// Returns why the node is unhealthy: first the reason alone, then the reason with the first
    /// faults. `None` if it is healthy. A node that is about to be removed counts as healthy.
    pub fn illness(&self) -> Option<(&'static str, String)> {
        self.state(|state| {
            let ill = illness(&state.facts, Instant::now(), None)?;
            let faults = state.facts.faults.first(TOLD);
            let told = faults
                .iter()
                .map(|(object, fault)| format!("; {object}: {}", fault.reason));
            Some((
                ill.reason(),
                format!("{}{}", ill.reason(), told.collect::<String>()),
            ))
        })
    }

    fn healthz(&self) -> (StatusCode, Json<Answer>) {
        self.state(|state| {
            let ill = illness(&state.facts, Instant::now(), None);
            let mut answer = state.answer();
            let left = (!answer.node_eligible).then_some(INELIGIBLE);
            answer.reason = ill.map(status::Ill::reason).or(left);
            (code(answer.reason.is_none()), Json(answer))
        })
    }
    fn livez(&self) -> (StatusCode, Json<Answer>) {
        self.state(|state| {
            let is_alive = is_alive(state.facts.turned, Instant::now());
            (code(is_alive), Json(state.answer()))
        })
    }
}

pub(super) fn code(is_good: bool) -> StatusCode {
    if is_good {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    }
}

/// Returns the HTTP handlers of the server at `healthzBindAddress`.
pub fn router(health: Health, answers: HealthAnswers) -> Router {
    // KUBE: on a node that is about to be deleted, /healthz sends load balancers away. /livez stays
    // good: the kubelet must not restart the agent for that, nor while the API server is away or a
    // map is full, because a new agent would find the same.
    let counted = |answer: fn(&Health) -> (StatusCode, Json<Answer>), count: Answers| {
        let health = health.clone();
        get(async move || {
            let answer = answer(&health);
            count.get_or_create(&[("code", answer.0.as_u16())]).inc();
            answer.into_response()
        })
    };
    Router::new()
        .route("/healthz", counted(Health::healthz, answers.healthz))
        .route("/livez", counted(Health::livez, answers.livez))
}
