// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Draws the dashboard's panels as SVG, from the series that Prometheus has recorded.

use std::{fs, path::Path};

use anyhow::{Context, Result, anyhow};
use plotters::{coord::Shift, prelude::*};

use crate::{
    expressions::Panel,
    prometheus::{Prometheus, Series},
};

const COLUMNS: usize = 3;
const PANEL: (u32, u32) = (360, 190);
/// If a panel has more lines than this, those that stay at 0 are left out: the legend would cover
/// the picture.
const MANY: usize = 3;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn = Result<(), Box<dyn std::error::Error>>;

/// Writes a picture of all panels into `file`. It shows the last `seconds`.
pub(crate) fn draw(
    prometheus: &Prometheus<'_>,
    panels: &[Panel],
    seconds: u64,
    file: &Path,
) -> Result<()> {
    let mut recorded = Vec::new();
    for panel in panels {
        let mut all = Vec::new();
        for line in &panel.lines {
            all.extend(prometheus.record(&line.text, &line.legend, seconds)?);
        }
        recorded.push(all);
    }
    let rows = panels.len().div_ceil(COLUMNS);
    let size = (PANEL.0 * COLUMNS as u32, PANEL.1 * rows as u32);
    let mut text = String::new();
    let mut drawing = || -> Drawn {
        let root = SVGBackend::with_string(&mut text, size).into_drawing_area();
        root.fill(&WHITE)?;
        let areas = root.split_evenly((rows, COLUMNS));
        for ((panel, series), area) in panels.iter().zip(&recorded).zip(&areas) {
            if panel.is_number {
                number(panel, series, area)?;
            } else {
                lines(panel, series, seconds as f64, area)?;
            }
        }
        root.present()?;
        Ok(())
    };
    drawing().map_err(|error| anyhow!("draw the dashboard: {error}"))?;
    fs::write(file, text + "\n").with_context(|| format!("write {}", file.display()))
}

fn number(panel: &Panel, series: &[Series], area: &Area<'_>) -> Drawn {
    let area = area.titled(&panel.title, ("sans-serif", 14))?;
    let last = |series: &Series| {
        let value = series.points.last().map_or(0.0, |(_, value)| *value);
        match &*series.name {
            name if name == panel.lines[0].legend => format!("{value}"),
            name => format!("{name}: {value}"),
        }
    };
    let shown: Vec<_> = series.iter().map(last).collect();
    let style = ("sans-serif", 30).into_font();
    area.draw(&Text::new(shown.join(", "), (20, 50), style))?;
    Ok(())
}

fn lines(panel: &Panel, series: &[Series], seconds: f64, area: &Area<'_>) -> Drawn {
    let values = series.iter().flat_map(|series| &series.points);
    let most = values.fold(0.0_f64, |most, (_, value)| most.max(*value));
    let series_count = series.len();
    let top = if most > 0.0 { most * 1.15 } else { 1.0 };
    let mut chart = ChartBuilder::on(area)
        .caption(&panel.title, ("sans-serif", 14))
        .margin(6)
        .x_label_area_size(22)
        .y_label_area_size(56)
        .build_cartesian_2d(-seconds..0.0, 0.0..top)?;
    chart
        .configure_mesh()
        .x_labels(4)
        .y_labels(4)
        .x_label_formatter(&|time| format!("{time:.0} s"))
        .y_label_formatter(&|value| with_unit(*value, &panel.unit))
        .light_line_style(WHITE)
        .draw()?;
    let moves = |series: &&Series| {
        let mut points = series.points.iter();
        series_count <= MANY || points.any(|(_, value)| *value != 0.0)
    };
    for (place, series) in series.iter().filter(moves).enumerate() {
        let colour = Palette99::pick(place).to_rgba();
        let points = series.points.iter().copied();
        let drawn = chart.draw_series(LineSeries::new(points, colour.stroke_width(2)))?;
        drawn.label(&series.name).legend(move |(x, y)| {
            PathElement::new(vec![(x, y), (x + 12, y)], colour.stroke_width(2))
        });
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .label_font(("sans-serif", 9))
        .background_style(WHITE.mix(0.7))
        .draw()?;
    Ok(())
}

/// Formats a value with its unit as Grafana does, in few characters.
fn with_unit(value: f64, unit: &str) -> String {
    match unit {
        "bytes" => format!("{:.0} MiB", value / 1_048_576.0),
        "percentunit" => format!("{:.1} %", value * 100.0),
        "s" if value < 1.0 => format!("{:.1} ms", value * 1000.0),
        "s" => format!("{value:.0} s"),
        "pps" | "ops" | "reqps" => format!("{value:.1}/s"),
        _ if value < 10.0 => format!("{value:.2}"),
        _ => format!("{value:.0}"),
    }
}
