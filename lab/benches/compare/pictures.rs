// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The report's pictures: how the main figures grow with the number of services.

use std::path::Path;

use anyhow::Result;

use crate::{
    plan::Measure,
    plots::{Line, Plot},
    results::{Results, Row},
};
use lab::load::setup::Setup;

pub(crate) fn write(results: &Results, folder: &Path) -> Result<()> {
    for plot in plots(results) {
        plot.write(folder)?;
    }
    Ok(())
}

fn lines(results: &Results, figure: impl Fn(Row, u32) -> Option<f64>) -> Vec<Line> {
    let of_row = |row: &Row| {
        let point = |services: &u32| Some((f64::from(*services), figure(*row, *services)?));
        Line {
            proxy: row.1,
            points: results.services().iter().filter_map(point).collect(),
        }
    };
    let rows = results.rows();
    let lines = rows.iter().map(of_row);
    lines.filter(|line| !line.points.is_empty()).collect()
}

fn plots(results: &Results) -> [Plot<'static>; 4] {
    let changes = |row, services| results.measured(row, services)?.changes.as_ref();
    let start = |row, services| results.measured(row, services)?.start.as_ref();
    let netfilter = |row: Row| (row.0 == Setup::Netfilter).then_some(());
    [
        Plot {
            name: "connections",
            title: "Short connections to the last service, on a node as kube-proxy needs it",
            figure: "of direct",
            logarithmic: false,
            lines: lines(results, |row, services| {
                netfilter(row)?;
                let packets = results.packets(row, services, Measure::LastService)?;
                Some(packets.ratio.median)
            }),
        },
        Plot {
            name: "new-service",
            title: "From the write of a new service to the API until it answers (median)",
            figure: "ms",
            logarithmic: true,
            lines: lines(results, |row, services| {
                Some(changes(row, services)?.service.p50)
            }),
        },
        Plot {
            name: "start",
            title: "From the proxy's start until the last service answers",
            figure: "s",
            logarithmic: true,
            lines: lines(results, |row, services| {
                netfilter(row)?;
                Some(start(row, services)?.answered)
            }),
        },
        Plot {
            name: "memory",
            title: "Resident memory when the last service answers",
            figure: "MiB",
            logarithmic: true,
            lines: lines(results, |row, services| {
                netfilter(row)?;
                Some(start(row, services)?.resident)
            }),
        },
    ]
}
