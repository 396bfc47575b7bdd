// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Health check node ports: load balancers ask there whether this node has endpoints of a service.
//! `agent` sends the plans of services, and the node's addresses that have node ports; this server
//! listens on each port at each of these addresses.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, hash_map::Entry},
    io,
    net::{IpAddr, Ipv6Addr, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use axum::{Router, http::header, response::IntoResponse};
use control::{
    object::{ObjectName, Warning},
    plan::HealthCheckPlan,
    warnings::{Topic, Warnings},
};
use tokio::{
    sync::{mpsc, watch},
    task::JoinHandle,
    time::{MissedTickBehavior, interval},
};
use tokio_util::sync::CancellationToken;

use super::{
    health::{Health, code},
    is_without_ipv6, listen_at, serve,
};

/// The pause before the next attempt to listen on ports where it failed.
const RETRY: Duration = Duration::from_secs(2);
const WEIGHT: &str = "x-load-balancing-endpoint-weight";

pub use control::plan::HealthUpdate as Update;

/// Keeps the listeners as `updates` demand, until `stop`. Listens at `addresses`; an unspecified
/// one means every address of its family.
pub async fn run(
    mut updates: mpsc::UnboundedReceiver<Vec<Update>>,
    mut addresses: watch::Receiver<BTreeSet<IpAddr>>,
    health: Health,
    warnings: Warnings,
    stop: CancellationToken,
) {
    let mut ports = Ports {
        health,
        warnings,
        stop,
        addresses: addresses.borrow_and_update().clone(),
        plans: HashMap::new(),
        wanted: BTreeMap::new(),
        listening: HashMap::new(),
        failed: BTreeSet::new(),
    };
    // A pause that began anew after each update would never end on a busy node.
    let mut retry = interval(RETRY);
    retry.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let waits = !ports.failed.is_empty();
        tokio::select! {
            received = updates.recv() => match received {
                Some(updates) => ports.update(updates).await,
                None => return,
            },
            Ok(()) = addresses.changed() => {
                let addresses = addresses.borrow_and_update().clone();
                ports.set_addresses(addresses).await;
            }
            _ = retry.tick(), if waits => ports.retry().await,
            () = ports.stop.cancelled() => return,
        }
    }
}

struct Ports {
    health: Health,
    warnings: Warnings,
    stop: CancellationToken,
    addresses: BTreeSet<IpAddr>,
    plans: HashMap<ObjectName, HealthCheckPlan>,
    /// The services that want a health check node port, by port. The first by name gets it.
    wanted: BTreeMap<u16, BTreeSet<ObjectName>>,
    listening: HashMap<u16, Listening>,
    failed: BTreeSet<u16>,
}

/// A service and how many endpoints it has on this node.
type Answer = (ObjectName, usize);

/// A health check node port on which the agent listens: what is answered, and a listener for each
/// address.
struct Listening {
    answer: Arc<Mutex<Answer>>,
    at: HashMap<IpAddr, Listener>,
}

struct Listener {
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Listener {
    /// Closes the listener's socket; requests that have arrived are still answered.
    async fn close(self) {
        self.stop.cancel();
        self.task.abort();
        // Once the task has ended, the port is free for a socket at another address.
        _ = self.task.await;
    }
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

    async fn set_addresses(&mut self, addresses: BTreeSet<IpAddr>) {
        self.addresses = addresses;
        for port in Vec::from_iter(self.wanted.keys().copied()) {
            self.refresh(port).await;
        }
    }

    async fn retry(&mut self) {
        for port in std::mem::take(&mut self.failed) {
            self.refresh(port).await;
        }
    }

    /// Opens and closes the listeners of one port as needed, and renews its warnings.
    async fn refresh(&mut self, port: u16) {
        self.failed.remove(&port);
        let services = self.wanted.get(&port).cloned().unwrap_or_default();
        let mut services = services.into_iter();
        let Some(first) = services.next() else {
            self.wanted.remove(&port);
            if let Some(listening) = self.listening.remove(&port) {
                for listener in listening.at.into_values() {
                    listener.close().await;
                }
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
        let plan = self.plans.get(&first);
        let answer = (first.clone(), plan.map_or(0, |plan| plan.local_endpoints));
        if let Err((address, error)) = self.listen(port, answer).await {
            self.failed.insert(port);
            faults.push(Warning {
                object: format!("Service {first}"),
                reason: format!(
                    "cannot listen on its healthCheckNodePort at {address}: {error}; will retry, stop the process that uses the port (find it with `ss -ltnp sport = :{port}`)",
                ),
            });
        }
        self.warnings.replace(Topic::HealthPort(port), faults);
    }

    /// Listens on the port at all of `self.addresses`, and at no others. Fails with the first
    /// address where listening failed, and why.
    async fn listen(&mut self, port: u16, answer: Answer) -> Result<(), (SocketAddr, io::Error)> {
        let listening = match self.listening.entry(port) {
            Entry::Occupied(known) => {
                let known = known.into_mut();
                *known.answer.lock().unwrap_or_else(PoisonError::into_inner) = answer;
                known
            }
            Entry::Vacant(free) => free.insert(Listening {
                answer: Arc::new(Mutex::new(answer)),
                at: HashMap::new(),
            }),
        };
        let gone = listening
            .at
            .extract_if(|at, _| !self.addresses.contains(at));
        for (_, listener) in Vec::from_iter(gone) {
            listener.close().await;
        }
        let mut first = Ok(());
        for address in &self.addresses {
            let Entry::Vacant(free) = listening.at.entry(*address) else {
                continue;
            };
            let address = SocketAddr::new(*address, port);
            match listen_at(address, true) {
                Ok(socket) => {
                    let stop = self.stop.child_token();
                    let router = router(Arc::clone(&listening.answer), self.health.clone());
                    let task = tokio::spawn(serve(socket, router, stop.clone()));
                    free.insert(Listener { stop, task });
                }
                // Without IPv6 in the kernel no client can ask at such an address.
                Err(error) if address.ip() == Ipv6Addr::UNSPECIFIED && is_without_ipv6(&error) => {}
                Err(error) => first = first.and(Err((address, error))),
            }
        }
        first
    }
}

fn router(answer: Arc<Mutex<Answer>>, health: Health) -> Router {
    // KUBE: every path and method gets this answer, with these fields. JSON escapes no name.
    Router::new().fallback(async move || {
        let answer = answer.lock().unwrap_or_else(PoisonError::into_inner);
        let (service, endpoints) = &*answer;
        let is_healthy = health.serves(&format!("Service {service}"));
        let headers = [
            (header::HeaderName::from_static(WEIGHT), endpoints.to_string()),
            (header::CONTENT_TYPE, "application/json".to_owned()),
            (header::X_CONTENT_TYPE_OPTIONS, "nosniff".to_owned()),
        ];
        let ObjectName { namespace, name } = service;
        let body = format!(
            r#"{{"service":{{"namespace":"{namespace}","name":"{name}"}},"localEndpoints":{endpoints},"serviceProxyHealthy":{is_healthy}}}"#
        );
        (code(*endpoints > 0 && is_healthy), headers, body).into_response()
    })
}
