// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Metrics that are read from the maps and the warnings at each scrape.

use std::path::PathBuf;

use control::warnings::Warnings;
use datapath::read::Reader;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{counter::ConstCounter, gauge::ConstGauge},
};

/// Name and help text of the metrics that are read from the maps.
pub(super) const PACKETS: (&str, &str) = (
    "portolan_packets",
    "Packets, connections and datagrams by outcome, each counted once",
);
pub(super) const SERVICE_FLOWS: (&str, &str) = (
    "portolan_service_flows",
    "Flows of a service in the flow tables",
);

/// Reads the packet counters, the flows per service and the number of warnings at each scrape.
#[derive(Debug)]
pub(super) struct AtScrape {
    pub(super) pin_dir: PathBuf,
    pub(super) warnings: Warnings,
    pub(super) per_service: bool,
}

impl Collector for AtScrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let warnings = ConstGauge::new(self.warnings.all().len() as i64);
        let help = "Warnings in force; the log has their texts";
        let encoded =
            encoder.encode_descriptor("portolan_warnings", help, None, warnings.metric_type())?;
        warnings.encode(encoded)?;
        // If the maps cannot be read, their metrics are left out; the agent itself warns about the
        // maps.
        let open = if self.per_service {
            Reader::open
        } else {
            Reader::without_names
        };
        let Ok(reader) = open(&self.pin_dir) else {
            return Ok(());
        };
        if let Ok(counts) = reader.counters() {
            let (name, help) = PACKETS;
            let kind = ConstCounter::new(0_u64).metric_type();
            let mut family = encoder.encode_descriptor(name, help, None, kind)?;
            for (counter, count) in proxy_common::Counter::ALL.iter().zip(counts) {
                let label = [("outcome", counter.name())];
                ConstCounter::new(count).encode(family.encode_family(&label)?)?;
            }
        }
        if self.per_service
            && let Ok(by_service) = reader.flow_counts()
        {
            let (name, help) = SERVICE_FLOWS;
            let kind = ConstGauge::new(0_i64).metric_type();
            let mut family = encoder.encode_descriptor(name, help, None, kind)?;
            for (service, count) in by_service {
                let label = [("service", service)];
                ConstGauge::new(count as i64).encode(family.encode_family(&label)?)?;
            }
        }
        Ok(())
    }
}
