// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Draws the report's pictures as SVG: a figure over the number of services, one line for each
//! proxy.

use std::{fs, ops::Range, path::Path};

use anyhow::{Context, Result, anyhow};
use plotters::{
    coord::ranged1d::{AsRangedCoord, ValueFormatter},
    prelude::*,
};

use crate::plan::Proxy;

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

/// One proxy's line in a picture. Each point is a number of services and the figure measured there.
pub(crate) struct Line {
    pub(crate) proxy: Proxy,
    pub(crate) points: Vec<(f64, f64)>,
}

/// One picture.
pub(crate) struct Plot<'a> {
    pub(crate) name: &'a str,
    pub(crate) title: &'a str,
    /// The label of the y axis.
    pub(crate) figure: &'a str,
    /// Whether the y axis is logarithmic.
    pub(crate) logarithmic: bool,
    pub(crate) lines: Vec<Line>,
}

impl Plot<'_> {
    /// Writes the picture into `folder`; nothing if there are no points to draw.
    pub(crate) fn write(&self, folder: &Path) -> Result<()> {
        let all = || self.lines.iter().flat_map(|line| &line.points).copied();
        if all().next().is_none() {
            return Ok(());
        }
        let over = |values: &mut dyn Iterator<Item = f64>| {
            values.fold((f64::MAX, f64::MIN), |(low, high), value| {
                (low.min(value), high.max(value))
            })
        };
        let (fewest, most) = over(&mut all().map(|(services, _)| services));
        let (low, high) = over(&mut all().map(|(_, figure)| figure));
        let services = fewest.min(1.0)..most * 1.5;
        let mut text = String::new();
        let drawn = if self.logarithmic {
            // Space for the legend below the lines.
            let figures = low / 50.0..high * 2.0;
            self.draw(&mut text, services, figures.log_scale())
        } else {
            self.draw(&mut text, services, 0.0..high * 1.1)
        };
        drawn.map_err(|error| anyhow!("draw {}: {error}", self.name))?;
        let file = folder.join(format!("{}.svg", self.name));
        fs::write(&file, text + "\n").with_context(|| format!("write {}", file.display()))
    }

    fn draw<Y>(
        &self,
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
            .y_desc(self.figure)
            .x_label_formatter(&|services| format!("{services:.0}"))
            .light_line_style(WHITE)
            .draw()?;
        for line in &self.lines {
            let colour = COLOURS[line.proxy as usize];
            chart
                .draw_series(LineSeries::new(
                    line.points.iter().copied(),
                    colour.stroke_width(2),
                ))?
                .label(line.proxy.name())
                .legend(move |(x, y)| {
                    PathElement::new(vec![(x, y), (x + 18, y)], colour.stroke_width(2))
                });
            let dots = line.points.iter();
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
