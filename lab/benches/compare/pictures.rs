// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Draws the report's pictures as SVG: how the main figures grow with the number of services, on a
//! node as kube-proxy needs it, one line for each proxy.

use std::{fs, ops::Range, path::Path};

use anyhow::{Context, Result, anyhow};
use lab::load::setup::Setup;
use plotters::{
    coord::ranged1d::{AsRangedCoord, ValueFormatter},
    prelude::*,
};

use crate::{
    plan::{MEMORY, Measure, Proxy, SERVICE, START},
    results::{Figure, Results},
};

const SIZE: (u32, u32) = (760, 420);
/// Colours of the lines, by the proxy's index: a proxy has the same colour in every picture.
const COLOURS: [RGBColor; 9] = [
    RGBColor(120, 120, 120),
    RGBColor(0, 114, 178),
    RGBColor(86, 180, 233),
    RGBColor(100, 80, 190),
    RGBColor(60, 60, 120),
    RGBColor(213, 94, 0),
    RGBColor(230, 159, 0),
    RGBColor(0, 158, 115),
    RGBColor(150, 205, 150),
];

/// One picture.
struct Picture {
    name: &'static str,
    title: &'static str,
    /// The label of the y axis.
    unit: &'static str,
    /// Whether the y axis is logarithmic.
    is_logarithmic: bool,
    /// The heading of the table with its figures.
    heading: &'static str,
}

const PICTURES: [Picture; 4] = [
    Picture {
        name: "connections",
        title: "Short connections to the last service, on a node as kube-proxy needs it",
        unit: "of direct",
        is_logarithmic: false,
        heading: Measure::LastService.heading(),
    },
    Picture {
        name: "new-service",
        title: "From the write of a new service to the API until it answers (median)",
        unit: "ms",
        is_logarithmic: true,
        heading: SERVICE,
    },
    Picture {
        name: "start",
        title: "From the proxy's start until the last service answers",
        unit: "s",
        is_logarithmic: true,
        heading: START,
    },
    Picture {
        name: "memory",
        title: "Resident memory when the last service answers",
        unit: "MiB",
        is_logarithmic: true,
        heading: MEMORY,
    },
];

/// One proxy's line. Each point is a number of services and the figure measured there.
type Line = (Proxy, Vec<(f64, f64)>);

/// Writes the pictures into `folder`, but those without any point.
pub(crate) fn write(results: &Results, folder: &Path) -> Result<()> {
    for picture in PICTURES {
        let rows = results.table(picture.heading).into_iter();
        let rows = rows.filter(|((setup, _), _)| *setup == Setup::Netfilter);
        let lines = rows.map(|((_, proxy), figures)| {
            let points = results.services().into_iter().zip(figures);
            let point = |(services, figure): (u32, Option<&Figure>)| {
                Some((f64::from(services), figure?.value))
            };
            (proxy, points.filter_map(point).collect())
        });
        let lines: Vec<Line> = lines.collect();
        if !lines.is_empty() {
            picture.write(&lines, folder)?;
        }
    }
    Ok(())
}

impl Picture {
    fn write(&self, lines: &[Line], folder: &Path) -> Result<()> {
        let all = || lines.iter().flat_map(|(_, points)| points).copied();
        let over = |values: &mut dyn Iterator<Item = f64>| {
            values.fold((f64::MAX, f64::MIN), |(low, high), value| {
                (low.min(value), high.max(value))
            })
        };
        let (fewest, most) = over(&mut all().map(|(services, _)| services));
        let (low, high) = over(&mut all().map(|(_, figure)| figure));
        let services = fewest.min(1.0)..most * 1.5;
        let mut text = String::new();
        let drawn = if self.is_logarithmic {
            // Space for the legend below the lines.
            let figures = low / 50.0..high * 2.0;
            self.draw(lines, &mut text, services, figures.log_scale())
        } else {
            self.draw(lines, &mut text, services, 0.0..high * 1.1)
        };
        drawn.map_err(|error| anyhow!("draw {}: {error}", self.name))?;
        let file = folder.join(format!("{}.svg", self.name));
        fs::write(&file, text + "\n").with_context(|| format!("write {}", file.display()))
    }

    fn draw<Y>(
        &self,
        lines: &[Line],
        text: &mut String,
        services: Range<f64>,
        figures: Y,
    ) -> Result<(), Box<dyn std::error::Error>>
    where
        Y: AsRangedCoord<Value = f64>,
        Y::CoordDescType: ValueFormatter<f64>,
    {
        let root = SVGBackend::with_string(text, SIZE).into_drawing_area();
        root.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&root)
            .caption(self.title, ("sans-serif", 18))
            .margin(12)
            .x_label_area_size(42)
            .y_label_area_size(64)
            .build_cartesian_2d(services.log_scale(), figures)?;
        chart
            .configure_mesh()
            .x_desc("services")
            .y_desc(self.unit)
            .x_label_formatter(&|services| format!("{services:.0}"))
            .light_line_style(WHITE)
            .draw()?;
        for (proxy, points) in lines {
            let colour = COLOURS[*proxy as usize];
            chart
                .draw_series(LineSeries::new(
                    points.iter().copied(),
                    colour.stroke_width(2),
                ))?
                .label(proxy.name())
                .legend(move |(x, y)| {
                    PathElement::new(vec![(x, y), (x + 18, y)], colour.stroke_width(2))
                });
            let dots = points.iter();
            chart.draw_series(dots.map(|point| Circle::new(*point, 3, colour.filled())))?;
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::LowerLeft)
            .background_style(WHITE.mix(0.85))
            .draw()?;
        root.present()?;
        Ok(())
    }
}
