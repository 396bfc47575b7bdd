// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Metrics of what is served and what is not, and of when the source of objects last sent
//! something. Fed by `agent`.

use control::model::Kind;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{family::Family, gauge::Gauge},
    registry::Registry,
};

use super::{
    add, add_seconds,
    sync::{Seconds, now},
};

/// Gauges of failed services, attached interfaces and hooks, and watches.
#[derive(Clone, Debug)]
pub struct State {
    failed_services: Gauge,
    interfaces: [Gauge; 2],
    hooks: [Gauge; 2],
    last_event: Family<OfKind, Seconds>,
    source_failing: Gauge,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct OfKind {
    kind: String,
}

impl State {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let mut gauge = |name, help| add(registry, name, help);
        Self {
            failed_services: gauge(
                "portolan_services_failed",
                "Services that are not in the maps as they should be; they are tried again",
            ),
            interfaces: [
                gauge(
                    "portolan_interfaces_wanted",
                    "Interfaces that the programs belong on",
                ),
                gauge(
                    "portolan_interfaces_attached",
                    "Interfaces that the programs are attached to",
                ),
            ],
            hooks: [
                gauge(
                    "portolan_hooks_wanted",
                    "Socket hooks that the kernel takes",
                ),
                gauge("portolan_hooks_attached", "Socket hooks that are attached"),
            ],
            last_event: add_seconds(
                registry,
                "portolan_watch_last_event_timestamp",
                "Time of the last event of the watch on a kind of objects; subtract it from the time",
                Family::default(),
            ),
            source_failing: add(
                registry,
                "portolan_source_failing",
                "1 while the API server's objects cannot be followed, and services stay as last known",
            ),
        }
    }

    /// Records the present time as the last time that the source sent something about objects of
    /// this kind.
    pub fn heard_of(&self, kind: Kind) {
        let kind = kind.to_string();
        self.last_event.get_or_create(&OfKind { kind }).set(now());
    }
    /// Records whether the agent fails to follow the API server's objects at present.
    pub fn set_source_failing(&self, failing: bool) {
        self.source_failing.set(failing.into());
    }
    pub fn set_failed_services(&self, count: usize) {
        set(&self.failed_services, count);
    }
    /// Sets the gauges of interfaces and of hooks. Each pair: how many should have the programs,
    /// and how many have them.
    pub fn set_attached(&self, interfaces: (usize, usize), hooks: (usize, usize)) {
        for (gauges, (wanted, attached)) in [(&self.interfaces, interfaces), (&self.hooks, hooks)] {
            set(&gauges[0], wanted);
            set(&gauges[1], attached);
        }
    }
}

fn set(gauge: &Gauge, count: usize) {
    gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
}
