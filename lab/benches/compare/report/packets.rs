// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The report's section about connections and packets.

use std::fmt::Write;

use anyhow::Result;
use lab::load::setup::Setup;

use super::{Report, grouped};
use crate::{
    plan::{Measure, Proxy},
    results::{Outcome, Packets},
};

impl<'a> Report<'a> {
    pub(super) fn about_packets(&self, text: &mut String) -> Result<()> {
        writeln!(text, "\n## Connections and packets, beside direct")?;
        for measure in Measure::ALL {
            let heading = format!("{} ({})", measure.name(), measure.unit());
            self.table(text, &heading, |row, services| {
                let packets = self.results.packets(row, services, measure)?;
                let rate = grouped((1e6 / packets.by_service) as u32);
                Some(format!("{} ({rate})", packets.ratio))
            })?;
        }
        let heading = "Short connections to the last service, beside direct on a bare node, of another minute";
        self.table(text, heading, |row, services| {
            let bare = (Setup::Bare, Proxy::Direct);
            let direct = self.results.packets(bare, services, Measure::LastService)?;
            let packets = self.results.packets(row, services, Measure::LastService)?;
            Some(format!("{:.3}", direct.direct / packets.by_service))
        })?;
        let heading = "connect() to the last service, µs: p50 / p99 / p99.9, in brackets direct";
        self.table(text, heading, |row, services| {
            let packets = self.results.packets(row, services, Measure::LastService)?;
            let show = |[a, b, c]: [f64; 3]| format!("{a:.1} / {b:.1} / {c:.0}");
            let (by_service, direct) = (packets.by_service_connect?, packets.direct_connect?);
            Some(format!("{} ({})", show(by_service), show(direct)))
        })?;
        let heading = "Processor time of a short connection to the last service, both ends, µs, in brackets direct";
        self.table(text, heading, |row, services| {
            let packets = self.results.packets(row, services, Measure::LastService)?;
            Some(format!(
                "{:.1} ({:.1})",
                packets.by_service_processor, packets.direct_processor
            ))
        })?;
        let again: u32 = self.all_packets().map(|packets| packets.again).sum();
        writeln!(text, "\n{again} rounds were run again.")?;
        Ok(())
    }

    fn all_packets(&self) -> impl Iterator<Item = &'a Packets> {
        self.results
            .cells
            .iter()
            .filter_map(|(_, outcome)| match outcome {
                Outcome::Measured(measured) => Some(measured.packets.values()),
                Outcome::GaveUp(_) => None,
            })
            .flatten()
    }
}
