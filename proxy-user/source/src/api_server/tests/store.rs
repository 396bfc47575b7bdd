// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Objects that the fake server keeps, so that they can be written as at a real one: by the version
//! that was read. It also keeps what was written, and can refuse or delay requests.

use std::{collections::HashMap, time::Duration};

use axum::{
    body::{Body, Bytes},
    http::Method,
    response::Response,
};
use serde_json::Value;
use tokio::time::Instant;

use super::fake::{Fake, json_response, status};

/// How the paths of such objects begin. Others have scripts.
const KEPT: [&str; 5] = [
    EVENTS,
    "/apis/coordination.k8s.io/v1/namespaces/",
    "/apis/gateway.networking.k8s.io/v1/namespaces/",
    "/apis/gateway.networking.k8s.io/v1/gatewayclasses/",
    "/api/v1/namespaces/shop/services/",
];
const EVENTS: &str = "/apis/events.k8s.io/v1/namespaces/";
const STATUS: &str = "/status";

/// Whether the objects below this path are kept.
pub(super) fn keeps(path: &str) -> bool {
    KEPT.iter().any(|start| path.starts_with(start))
}

/// What is done about requests with a method and a path.
#[derive(Clone)]
pub(super) enum Fault {
    Refused(u16, &'static str),
    Delayed(Duration),
}

/// A request to write something, and the status of its answer.
#[derive(Clone, Debug)]
pub(super) struct Written {
    pub(super) method: Method,
    pub(super) path: String,
    pub(super) body: Value,
    pub(super) code: u16,
    pub(super) at: Instant,
}

/// The objects by their paths.
#[derive(Default)]
pub(super) struct Store {
    objects: HashMap<String, Value>,
    version: u64,
    faults: HashMap<(Method, String), Fault>,
    written: Vec<Written>,
    /// The paths that were read.
    read: Vec<String>,
}

impl Store {
    /// Does what a request asks for; returns the status and the object.
    fn serve(&mut self, method: &Method, path: &str, body: &Value) -> (u16, Value) {
        let (path, is_status) = match path.strip_suffix(STATUS) {
            Some(path) => (path.to_owned(), true),
            None if *method == Method::POST => {
                let name = body["metadata"]["name"].as_str().expect("a name");
                (format!("{path}/{name}"), false)
            }
            None => (path.to_owned(), false),
        };
        let current = self.objects.get(&path).cloned();
        let version = |object: &Value| object["metadata"]["resourceVersion"].clone();
        let is_other = |current: &Value| version(body) != version(current);
        let stale = !version(body).is_null() && current.as_ref().is_some_and(is_other);
        match (method, current) {
            (&Method::GET, Some(object)) => (200, object),
            (&Method::POST, None) => (201, self.put(path, body.clone())),
            (&Method::POST, Some(_)) => (409, "it exists".into()),
            (&Method::PUT | &Method::PATCH, Some(_)) if stale => (409, "it has changed".into()),
            (&Method::PUT, Some(_)) => (200, self.put(path, body.clone())),
            (&Method::PATCH, Some(mut object)) if is_status => {
                // KUBE: as a JSON merge patch of a status has it, whose fields are lists.
                for (field, value) in body["status"].as_object().into_iter().flatten() {
                    object["status"][field] = value.clone();
                }
                (200, self.put(path, object))
            }
            // It is applied.
            (&Method::PATCH, _) if !is_status => (200, self.put(path, body.clone())),
            (&Method::DELETE, Some(object)) => {
                self.objects.remove(&path);
                (200, object)
            }
            (_, None) => (404, "not found".into()),
            (_, Some(_)) => (405, "not known here".into()),
        }
    }

    fn put(&mut self, path: String, mut object: Value) -> Value {
        self.version += 1;
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        self.objects.insert(path, object.clone());
        object
    }
}

impl Fake {
    /// Creates or replaces an object, as another client does.
    pub(super) fn put(&self, path: &str, object: Value) {
        self.store().put(path.to_owned(), object);
    }
    /// Removes an object, as another client does.
    pub(super) fn remove(&self, path: &str) {
        self.store().objects.remove(path);
    }
    /// Returns an object; null if there is none.
    pub(super) fn object(&self, path: &str) -> Value {
        self.store().objects.get(path).cloned().unwrap_or_default()
    }
    /// Sets what is done about requests with this method and path from now on.
    pub(super) fn set_fault(&self, method: Method, path: &str, fault: Option<Fault>) {
        let faults = &mut self.store().faults;
        match fault {
            Some(fault) => faults.insert((method, path.to_owned()), fault),
            None => faults.remove(&(method, path.to_owned())),
        };
    }
    /// Returns the requests to write something whose paths begin like this.
    pub(super) fn written(&self, start: &str) -> Vec<Written> {
        let written = self.store().written.clone().into_iter();
        written.filter(|one| one.path.starts_with(start)).collect()
    }

    /// Returns how often paths that begin like this were read.
    pub(super) fn read(&self, start: &str) -> usize {
        let read = &self.store().read;
        read.iter().filter(|path| path.starts_with(start)).count()
    }
    /// Returns the events that were created.
    pub(super) fn posted(&self) -> Vec<Value> {
        let written = self.written(EVENTS).into_iter();
        let created = written.filter(|one| one.code == 201);
        created.map(|one| one.body).collect()
    }

    /// Answers a request about an object that is kept.
    pub(super) async fn keep_at(self, method: Method, path: String, body: Bytes) -> Response {
        let place = (method.clone(), path.clone());
        let fault = self.store().faults.get(&place).cloned();
        if let Some(Fault::Delayed(time)) = fault {
            tokio::time::sleep(time).await;
        }
        let body = serde_json::from_slice(&body).unwrap_or_default();
        let mut store = self.store();
        let (code, object) = match fault {
            Some(Fault::Refused(code, why)) => (code, why.into()),
            _ => store.serve(&method, &path, &body),
        };
        if method == Method::GET {
            store.read.push(path);
        } else {
            store.written.push(Written {
                method,
                path,
                body,
                code,
                at: Instant::now(),
            });
        }
        match object {
            Value::String(why) => status(code, &why),
            object => json_response(Body::from(object.to_string())),
        }
    }
}
