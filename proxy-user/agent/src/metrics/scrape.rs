// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Metrics that are read at each scrape: from the maps and the warnings; and those of the process
//! itself from /proc, with the names of Prometheus' client libraries.

use std::{fs, path::PathBuf};

use control::warnings::Warnings;
use datapath::read::Reader;
use nix::{
    sys::resource::{Resource, getrlimit},
    unistd::{SysconfVar, sysconf},
};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{counter::ConstCounter, gauge::ConstGauge},
};

use super::services::ServiceMetrics;

/// Name and help text of the metric of all outcomes.
pub(super) const PACKETS: (&str, &str) = (
    "portolan_packets",
    "Packets, connections and datagrams by outcome, each counted once",
);

/// Reads the programs' counters and the number of warnings at each scrape.
#[derive(Debug)]
pub(super) struct AtScrape {
    pub(super) pin_dir: PathBuf,
    pub(super) warnings: Warnings,
    pub(super) services: ServiceMetrics,
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
        let open = if self.services.most > 0 {
            Reader::open
        } else {
            Reader::without_names
        };
        let Ok(reader) = open(&self.pin_dir) else {
            return Ok(());
        };
        // Maps that take over have no counts yet, and get them all at once.
        if reader.settled().is_some()
            && let Ok(counts) = reader.counters()
        {
            let (name, help) = PACKETS;
            let kind = ConstCounter::new(0_u64).metric_type();
            let mut family = encoder.encode_descriptor(name, help, None, kind)?;
            for (counter, count) in proxy_common::Counter::ALL.iter().zip(counts) {
                let label = [("outcome", counter.name())];
                ConstCounter::new(count).encode(family.encode_family(&label)?)?;
            }
        }
        match self.services.most {
            0 => Ok(()),
            _ => self.services.encode(reader, &mut encoder),
        }
    }
}

/// Reads the metrics of the agent's process at each scrape. A value that /proc does not have is
/// omitted.
#[derive(Debug)]
pub(super) struct Process;

/// Reads processor time and start time, in seconds, and virtual and resident memory of the agent's
/// process: from /proc/self/stat and the `btime` of /proc/stat. None if a value is missing.
fn figures() -> Option<[f64; 4]> {
    let per_second = sysconf(SysconfVar::CLK_TCK).ok()?? as f64;
    let page = sysconf(SysconfVar::PAGE_SIZE).ok()?? as f64;
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    // The process name in parentheses may contain anything; the third field comes after it.
    let (_, fields) = stat.rsplit_once(") ")?;
    let fields: Vec<_> = fields.split_whitespace().collect();
    let field = |number: usize| fields.get(number - 3)?.parse::<f64>().ok();
    let all = fs::read_to_string("/proc/stat").ok()?;
    let mut booted = all.lines().filter_map(|line| line.strip_prefix("btime "));
    let booted: f64 = booted.next()?.trim().parse().ok()?;
    let cpu = (field(14)? + field(15)?) / per_second;
    let start = booted + field(22)? / per_second;
    Some([cpu, start, field(23)?, field(24)? * page])
}

/// KUBE: returns how many bytes of IP packets the network namespace has received, and how many it
/// has sent; None if /proc does not say.
fn network_bytes() -> Option<[f64; 2]> {
    let text = fs::read_to_string("/proc/self/net/netstat").ok()?;
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("IpExt: "));
    let (names, values) = (lines.next()?, lines.next()?);
    let value = |wanted| {
        let mut pairs = names.split(' ').zip(values.split(' '));
        let (_, value) = pairs.find(|(name, _)| *name == wanted)?;
        value.parse().ok()
    };
    Some([value("InOctets")?, value("OutOctets")?])
}

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let [cpu, start, all, resident] = figures().map_or([None; 4], |all| all.map(Some));
        let [received, sent] = network_bytes().map_or([None; 2], |both| both.map(Some));
        let limit = |resource| getrlimit(resource).ok().map(|(soft, _)| soft as f64);
        let open = fs::read_dir("/proc/self/fd").map(|all| all.count() as f64);
        let gauges = [
            (
                "process_start_time_seconds",
                "Start time of the process since 1970",
                start,
            ),
            ("process_resident_memory_bytes", "Resident memory", resident),
            ("process_virtual_memory_bytes", "Virtual memory", all),
            (
                "process_virtual_memory_max_bytes",
                "Virtual memory that the process may have",
                limit(Resource::RLIMIT_AS),
            ),
            ("process_open_fds", "Open file descriptors", open.ok()),
            (
                "process_max_fds",
                "File descriptors that the process may have",
                limit(Resource::RLIMIT_NOFILE),
            ),
        ];
        for (name, help, value) in gauges {
            if let Some(value) = value {
                let gauge = ConstGauge::new(value);
                let kind = gauge.metric_type();
                gauge.encode(encoder.encode_descriptor(name, help, None, kind)?)?;
            }
        }
        for (name, help, value) in [
            ("process_cpu_seconds", "Processor time of the process", cpu),
            (
                "process_network_receive_bytes",
                "Bytes of IP packets that the network namespace has received",
                received,
            ),
            (
                "process_network_transmit_bytes",
                "Bytes of IP packets that the network namespace has sent",
                sent,
            ),
        ] {
            if let Some(value) = value {
                let counter = ConstCounter::new(value);
                let kind = counter.metric_type();
                counter.encode(encoder.encode_descriptor(name, help, None, kind)?)?;
            }
        }
        Ok(())
    }
}
