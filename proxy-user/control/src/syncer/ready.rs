// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How many endpoints of each service are ready. Kept by `syncer`, read by the agent's metrics.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use crate::{object::ObjectName, plan::ServicePlan};

/// The number of ready endpoints on this node and on others, by "namespace/name" of the service.
/// Clones share the numbers.
#[derive(Clone, Debug, Default)]
pub struct ReadyEndpoints(Arc<Mutex<HashMap<String, [usize; 2]>>>);

impl ReadyEndpoints {
    /// Notes the numbers of a service's plan; forgets a service that is not served.
    pub fn note(&self, name: &ObjectName, plan: &ServicePlan) {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match plan.ports.is_empty() {
            true => _ = counts.remove(&name.to_string()),
            false => _ = counts.insert(name.to_string(), plan.ready),
        }
    }
    /// Returns the numbers of a service; None if it is not served.
    pub fn of(&self, service: &str) -> Option<[usize; 2]> {
        let counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        counts.get(service).copied()
    }
}
