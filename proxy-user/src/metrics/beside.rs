// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What `agent` has found beside the programs at its last look.

use prometheus_client::{metrics::gauge::Gauge, registry::Registry};

use super::add;

/// Gauges of foreign programs, and of interfaces that do not redirect.
#[derive(Clone, Debug)]
pub struct Beside {
    before: Gauge,
    left: Gauge,
}

impl Beside {
    pub(super) fn register(registry: &mut Registry) -> Self {
        Self {
            before: add(
                registry,
                "portolan_foreign_programs_before",
                "tc programs of others that run before portolan's at one of its interfaces and may hide packets from it",
                Gauge::default(),
            ),
            left: add(
                registry,
                "portolan_interfaces_left_to_stack",
                "Interfaces whose packets take the node's stack though forwarding is redirect, because something there needs it",
                Gauge::default(),
            ),
        }
    }

    /// Shows how many there are.
    pub fn set(&self, before: usize, left: u32) {
        self.before.set(i64::try_from(before).unwrap_or(i64::MAX));
        self.left.set(left.into());
    }
}
