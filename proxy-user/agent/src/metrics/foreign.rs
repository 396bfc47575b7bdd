// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Metrics of foreign programs, of interfaces whose packets take the stack, and of uplinks with
//! XDP.

use prometheus_client::{metrics::gauge::Gauge, registry::Registry};

use super::add;

/// Gauges of foreign tc programs, of interfaces whose packets take the stack, and of uplinks with
/// XDP.
#[derive(Clone, Debug)]
pub struct ForeignGauges {
    before: Gauge,
    left: Gauge,
    xdp: Gauge,
    without_xdp: Gauge,
}

impl ForeignGauges {
    pub(super) fn register(registry: &mut Registry) -> Self {
        Self {
            before: add(
                registry,
                "portolan_foreign_programs_before",
                "tc programs of others that run before portolan's at one of its interfaces and may hide packets from it",
            ),
            left: add(
                registry,
                "portolan_interfaces_left_to_stack",
                "Interfaces whose packets take the node's stack, whatever forwarding says, because something there needs it",
            ),
            xdp: add(
                registry,
                "portolan_uplinks_with_xdp",
                "Uplinks where XDP takes packets of known flows",
            ),
            without_xdp: add(
                registry,
                "portolan_uplinks_without_xdp",
                "Uplinks where XDP takes no packets though the setting xdp is on, because something there is in the way",
            ),
        }
    }

    /// Sets how many uplinks have the XDP program, and how many lack it though `xdp` is on.
    pub fn set_xdp(&self, attached: usize, declined: usize) {
        self.xdp.set(i64::try_from(attached).unwrap_or(i64::MAX));
        self.without_xdp
            .set(i64::try_from(declined).unwrap_or(i64::MAX));
    }

    /// Sets how many foreign programs run before portolan's, and for how many interfaces the
    /// packets take the stack although `forwarding` is `auto`.
    pub fn set(&self, before: usize, left: u32) {
        self.before.set(i64::try_from(before).unwrap_or(i64::MAX));
        self.left.set(left.into());
    }
}
