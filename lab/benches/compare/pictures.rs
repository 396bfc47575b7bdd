// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which pictures the report has: how what matters most grows with the number of services.

use std::path::Path;

use anyhow::Result;

use crate::{
    plan::Measure,
    plots::{Line, Plot},
    report::{Report, Row},
};
use lab::load::setup::Setup;

pub(crate) fn write(report: &Report<'_>, folder: &Path) -> Result<()> {
    for plot in plots(report) {
        plot.write(folder)?;
    }
    Ok(())
}

fn lines(report: &Report<'_>, figure: impl Fn(Row, u32) -> Option<f64>) -> Vec<Line> {
    let of_row = |row: &Row| {
        let point = |services: &u32| Some((f64::from(*services), figure(*row, *services)?));
        Line {
            proxy: row.1,
            points: report.services.iter().filter_map(point).collect(),
        }
    };
    let lines = report.rows.iter().map(of_row);
    lines.filter(|line| !line.points.is_empty()).collect()
}

fn plots(report: &Report<'_>) -> [Plot<'static>; 4] {
    let changes = |row, services| report.measured(row, services)?.changes.as_ref();
    let start = |row, services| report.measured(row, services)?.start.as_ref();
    let netfilter = |row: Row| (row.0 == Setup::Netfilter).then_some(());
    [
        Plot {
            name: "connections",
            title: "Short connections to the last service, on a node as kube-proxy needs it",
            figure: "of direct",
            logarithmic: false,
            lines: lines(report, |row, services| {
                netfilter(row)?;
                let packets = report.packets(row, services, Measure::LastService)?;
                Some(packets.ratio.median)
            }),
        },
        Plot {
            name: "new-service",
            title: "From the write of a new service to the API until it answers (median)",
            figure: "ms",
            logarithmic: true,
            lines: lines(report, |row, services| {
                Some(changes(row, services)?.service.p50)
            }),
        },
        Plot {
            name: "start",
            title: "From the proxy's start until the last service answers",
            figure: "s",
            logarithmic: true,
            lines: lines(report, |row, services| {
                netfilter(row)?;
                Some(start(row, services)?.answered)
            }),
        },
        Plot {
            name: "memory",
            title: "Resident memory when the last service answers",
            figure: "MiB",
            logarithmic: true,
            lines: lines(report, |row, services| {
                netfilter(row)?;
                Some(start(row, services)?.resident)
            }),
        },
    ]
}
