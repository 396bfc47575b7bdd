// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Metrics of how full the maps are, as the agent last counted them.

use control::apply::Fill;
use datapath::Occupancy;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};
use proxy_common::maps;

use super::add;

/// Gauges of the entries and sizes of the flow tables and the other maps.
#[derive(Clone, Debug)]
pub(super) struct FillGauges {
    flows: Family<IpFamily, Gauge>,
    unanswered: Family<IpFamily, Gauge>,
    entries: Family<Map, Gauge>,
    capacity: Family<Map, Gauge>,
    growths: Counter,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct IpFamily {
    family: &'static str,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct Map {
    map: &'static str,
}

impl FillGauges {
    pub(super) fn register(registry: &mut Registry) -> Self {
        Self {
            flows: add(registry, "portolan_flows", "Flows in the flow table"),
            unanswered: add(
                registry,
                "portolan_unanswered_flow_entries",
                "Flow table entries without any answer yet",
            ),
            entries: add(registry, "portolan_map_entries", "Elements of a map in use"),
            capacity: add(registry, "portolan_map_capacity", "Elements a map can hold"),
            growths: add(
                registry,
                "portolan_map_growths",
                "How often larger maps took the place of others that were nearly full",
            ),
        }
    }

    pub(super) fn count_growth(&self) {
        self.growths.inc();
    }

    pub(super) fn set(&self, flows: &Occupancy, fills: &[Fill]) {
        for (family, counts) in [("IPv4", &flows.v4), ("IPv6", &flows.v6)] {
            let label = IpFamily { family };
            let flows = self.flows.get_or_create(&label);
            flows.set(counts.flows.into());
            let unanswered = self.unanswered.get_or_create(&label);
            unanswered.set(counts.unanswered.into());
        }
        let flows = [(maps::FLOWS_V4, &flows.v4), (maps::FLOWS_V6, &flows.v6)];
        self.set_maps(&flows.map(|(map, counts)| Fill {
            map,
            entries: counts.entries,
            capacity: counts.capacity,
        }));
        self.set_maps(fills);
    }

    pub(super) fn set_maps(&self, fills: &[Fill]) {
        for fill in fills {
            let label = Map { map: fill.map };
            let entries = self.entries.get_or_create(&label);
            entries.set(fill.entries.into());
            let capacity = self.capacity.get_or_create(&label);
            capacity.set(fill.capacity.into());
        }
    }
}
