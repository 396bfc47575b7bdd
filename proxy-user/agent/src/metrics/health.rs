// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Metrics that count the answers of `/healthz` and `/livez` by HTTP status. Fed by
//! `server::health`.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};

use super::add;

/// Counters of the answers of `/healthz` and `/livez` by HTTP status.
#[derive(Clone, Debug, Default)]
pub struct HealthAnswers {
    healthz: Family<Code, Counter>,
    livez: Family<Code, Counter>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct Code {
    code: u16,
}

impl HealthAnswers {
    pub(super) fn register(registry: &mut Registry) -> Self {
        Self {
            healthz: add(
                registry,
                "kubeproxy_proxy_healthz",
                "Answers of /healthz by status",
            ),
            livez: add(
                registry,
                "kubeproxy_proxy_livez",
                "Answers of /livez by status",
            ),
        }
    }
    pub fn healthz(&self, code: u16) {
        self.healthz.get_or_create(&Code { code }).inc();
    }
    pub fn livez(&self, code: u16) {
        self.livez.get_or_create(&Code { code }).inc();
    }
}
