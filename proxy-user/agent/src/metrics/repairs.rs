// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Metrics that count what the agent has put back after somebody removed or changed it in the
//! kernel.

use datapath::RepairKind;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};

use super::add;

/// Counters of repairs: what somebody had removed or changed in the kernel was put back. One
/// counter per kind.
#[derive(Clone, Debug)]
pub struct Repairs(Family<Kind, Counter>);

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct Kind {
    kind: &'static str,
}

impl Repairs {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let repairs = Self(add(
            registry,
            "portolan_repairs",
            "What somebody had removed or changed in the kernel, and the agent has put back",
        ));
        // Every kind starts at zero, so that Prometheus' rate() sees its first repair.
        for kind in RepairKind::ALL {
            drop(repairs.0.get_or_create(&Kind { kind: kind.name() }));
        }
        repairs
    }
    pub fn count(&self, kind: RepairKind) {
        self.0.get_or_create(&Kind { kind: kind.name() }).inc();
    }
}
