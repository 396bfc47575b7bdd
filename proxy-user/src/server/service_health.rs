// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Health check node ports: load balancers ask there whether this node has endpoints of a service. `agent` sends
//! the plans; each port has one listener.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::Ipv6Addr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use axum::{
    Json, Router,
    http::{StatusCode, header},
    response::IntoResponse,
};
use serde::Serialize;
use tokio::{sync::mpsc, time::sleep};
use tokio_util::sync::CancellationToken;

use super::{health::Health, listen, serve};
use crate::{
    object::{ObjectName, Warning},
    plan::HealthCheckPlan,
    warnings::{Topic, Warnings},
};

/// The pause before trying again to listen on a port.
const RETRY: Duration = Duration::from_secs(2);
const WEIGHT: &str = "x-load-balancing-endpoint-weight";

/// The new health check of one service; none removes it.
pub type Update = (ObjectName, Option<HealthCheckPlan>);

/// Applies the updates until `stop`.
pub async fn run(
    mut updates: mpsc::UnboundedReceiver<Vec<Update>>,
    health: Health,
    warnings: Warnings,
    stop: CancellationToken,
) {
    let mut ports = Ports {
        health,
        warnings,
        stop,
        plans: HashMap::new(),
        wanted: BTreeMap::new(),
        listeners: HashMap::new(),
        failed: BTreeSet::new(),
    };
    loop {
        let waits = !ports.failed.is_empty();
        tokio::select! {
            received = updates.recv() => match received {
                Some(updates) => ports.update(updates).await,
                None => return,
            },
            () = sleep(RETRY), if waits => ports.retry().await,
            () = ports.stop.cancelled() => return,
        }
    }
}

struct Ports {
    health: Health,
    warnings: Warnings,
    stop: CancellationToken,
    plans: HashMap<ObjectName, HealthCheckPlan>,
    /// The services that name a port: the first by name has it.
    wanted: BTreeMap<u16, BTreeSet<ObjectName>>,
    listeners: HashMap<u16, Listener>,
    failed: BTreeSet<u16>,
}

struct Listener {
    answer: Arc<Mutex<Answer>>,
    stop: CancellationToken,
}

/// KUBE: the fields of kube-proxy's answer.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Answer {
    service: Named,
    local_endpoints: usize,
    service_proxy_healthy: bool,
}

#[derive(Clone, Debug, Serialize)]
struct Named {
    namespace: String,
    name: String,
}

impl Ports {
    async fn update(&mut self, updates: Vec<Update>) {
        let mut touched = BTreeSet::new();
        for (name, plan) in updates {
            let previous = match plan {
                Some(plan) => self.plans.insert(name.clone(), plan),
                None => self.plans.remove(&name),
            };
            if let Some(previous) = previous {
                if let Some(services) = self.wanted.get_mut(&previous.port) {
                    services.remove(&name);
                }
                touched.insert(previous.port);
            }
            if let Some(plan) = plan {
                self.wanted.entry(plan.port).or_default().insert(name);
                touched.insert(plan.port);
            }
        }
        for port in touched {
            self.refresh(port).await;
        }
    }

    async fn retry(&mut self) {
        for port in std::mem::take(&mut self.failed) {
            self.refresh(port).await;
        }
    }

    /// Starts, updates or stops the listener of one port.
    async fn refresh(&mut self, port: u16) {
        let services = self.wanted.get(&port).cloned().unwrap_or_default();
        let mut services = services.into_iter();
        let Some(first) = services.next() else {
            self.wanted.remove(&port);
            self.failed.remove(&port);
            if let Some(listener) = self.listeners.remove(&port) {
                listener.stop.cancel();
            }
            self.warnings.replace(Topic::HealthPort(port), Vec::new());
            return;
        };
        let mut faults: Vec<Warning> = services
            .map(|other| Warning {
                object: format!("Service {other}"),
                reason: format!(
                    "healthCheckNodePort {port} is already used by Service {first}; give one of the two another port",
                ),
            })
            .collect();
        let answer = Answer {
            local_endpoints: self
                .plans
                .get(&first)
                .map_or(0, |plan| plan.local_endpoints),
            service: Named {
                namespace: first.namespace.to_string(),
                name: first.name.to_string(),
            },
            service_proxy_healthy: false,
        };
        if let Some(listener) = self.listeners.get(&port) {
            *listener
                .answer
                .lock()
                .unwrap_or_else(PoisonError::into_inner) = answer;
        } else {
            match listen((Ipv6Addr::UNSPECIFIED, port).into()) {
                Ok(socket) => {
                    let stop = self.stop.child_token();
                    let answer = Arc::new(Mutex::new(answer));
                    let router = router(Arc::clone(&answer), self.health.clone());
                    tokio::spawn(serve(socket, router, stop.clone()));
                    self.listeners.insert(port, Listener { answer, stop });
                    self.failed.remove(&port);
                }
                Err(error) => {
                    self.failed.insert(port);
                    faults.push(Warning {
                        object: format!("Service {first}"),
                        reason: format!(
                            "cannot listen on its healthCheckNodePort {port}: {error}; will retry, stop the process that uses the port (find it with `ss -ltnp sport = :{port}`)",
                        ),
                    });
                }
            }
        }
        self.warnings.replace(Topic::HealthPort(port), faults);
    }
}

fn router(answer: Arc<Mutex<Answer>>, health: Health) -> Router {
    // KUBE: every path and method is answered.
    Router::new().fallback(async move || {
        let mut answer = answer
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let Named { namespace, name } = &answer.service;
        answer.service_proxy_healthy = health.serves(&format!("Service {namespace}/{name}"));
        let code = if answer.local_endpoints > 0 && answer.service_proxy_healthy {
            StatusCode::OK
        } else {
            StatusCode::SERVICE_UNAVAILABLE
        };
        let weight = answer.local_endpoints.to_string();
        let headers = [
            (header::HeaderName::from_static(WEIGHT), weight),
            (header::X_CONTENT_TYPE_OPTIONS, "nosniff".to_owned()),
        ];
        (code, headers, Json(answer)).into_response()
    })
}
