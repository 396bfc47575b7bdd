// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Metrics of what is served and what is not, of what the agent has found and changed in the
//! kernel, and of the answers about its health. Fed by `agent` and `server::health`.

use control::{apply::Fill, model::Kind};
use datapath::{Ended, Occupancy, RepairKind};
use prometheus_client::{
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

use super::{
    Label, metrics,
    sync::{Seconds, now},
};

/// The number of answers with each HTTP status.
pub type Answers = Family<[(&'static str, u16); 1], Counter>;

metrics! {
    /// Metrics of the agent's state.
    State {
        failed_services: Gauge, "portolan_services_failed",
            "Services that are not in the maps as they should be; they are tried again";
        interfaces_wanted: Gauge, "portolan_interfaces_wanted",
            "Interfaces that the programs belong on";
        interfaces_attached: Gauge, "portolan_interfaces_attached",
            "Interfaces that the programs are attached to";
        hooks_wanted: Gauge, "portolan_hooks_wanted", "Socket hooks that the kernel takes";
        hooks_attached: Gauge, "portolan_hooks_attached", "Socket hooks that are attached";
        last_event: Family<[(&'static str, String); 1], Seconds>,
            "portolan_watch_last_event_timestamp",
            "Time of the last event of the watch on a kind of objects",
            Family::default();
        source_failing: Gauge, "portolan_source_failing",
            "1 while the API server's objects cannot be followed, and services stay as last known";
        foreign_before: Gauge, "portolan_foreign_programs_before",
            "tc programs of others that run before portolan's and may hide packets from it";
        left_to_stack: Gauge, "portolan_interfaces_left_to_stack",
            "Interfaces whose packets take the node's stack because something there needs it";
        with_xdp: Gauge, "portolan_uplinks_with_xdp",
            "Uplinks where XDP takes packets of known flows";
        without_xdp: Gauge, "portolan_uplinks_without_xdp",
            "Uplinks where XDP takes no packets because something there is in the way";
        repairs: Family<Label, Counter>, "portolan_repairs",
            "What somebody had removed or changed in the kernel, and the agent has put back";
        ended: Family<Label, Counter>, "portolan_connections_of_gone_endpoints_ended",
            "Connections that the agent has ended because their endpoint's pod is gone, by removing the flow or closing the client's socket";
        flows: Family<Label, Gauge>, "portolan_flows", "Flows in the flow table";
        unanswered: Family<Label, Gauge>, "portolan_unanswered_flow_entries",
            "Flow table entries without any answer yet";
        entries: Family<Label, Gauge>, "portolan_map_entries", "Elements of a map in use";
        capacity: Family<Label, Gauge>, "portolan_map_capacity", "Elements a map can hold";
        growths: Counter, "portolan_map_growths",
            "How often larger maps took the place of others that were nearly full";
    }
}

metrics! {
    /// Counters of the answers of `/healthz` and `/livez` by HTTP status.
    #[derive(Default)]
    HealthAnswers {
        healthz: Answers, "kubeproxy_proxy_healthz",
            "Answers of /healthz by status";
        livez: Answers, "kubeproxy_proxy_livez",
            "Answers of /livez by status";
    }
}

impl State {
    /// Lets counters with fixed kinds start at zero, so that Prometheus' rate() sees the first
    /// event of each.
    pub(super) fn starting(self) -> Self {
        for kind in RepairKind::ALL {
            drop(self.repairs.get_or_create(&[("kind", kind.name())]));
        }
        self.count_ended(Ended::default());
        self
    }
    /// Records the present time as the last time that the source sent something about objects of
    /// this kind.
    pub fn heard_of(&self, kind: Kind) {
        let last = self.last_event.get_or_create(&[("kind", kind.to_string())]);
        last.set(now());
    }
    /// Counts connections that were ended because their endpoints' pods are gone.
    pub fn count_ended(&self, ended: Ended) {
        for (kind, count) in [("flow", ended.flows), ("socket", ended.sockets)] {
            self.ended.get_or_create(&[("kind", kind)]).inc_by(count);
        }
    }
    /// Sets how full the flow tables (`flows`) and the maps that hold services (`fills`) are.
    pub fn set_fill(&self, flows: &Occupancy, fills: &[Fill]) {
        for (family, counts) in [("IPv4", &flows.v4), ("IPv6", &flows.v6)] {
            let label = [("family", family)];
            self.flows.get_or_create(&label).set(counts.flows.into());
            let unanswered = self.unanswered.get_or_create(&label);
            unanswered.set(counts.unanswered.into());
        }
        self.set_maps(&flows.fills(|counts| counts.entries));
        self.set_maps(fills);
    }
    /// Sets how full the maps in `fills` are.
    pub fn set_maps(&self, fills: &[Fill]) {
        for fill in fills {
            let label = [("map", fill.map)];
            self.entries.get_or_create(&label).set(fill.entries.into());
            let capacity = self.capacity.get_or_create(&label);
            capacity.set(fill.capacity.into());
        }
    }
}
