// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Draws the live `top`: the names of the tables, a status line, the table, a line of keys. Takes
//! the view and its rows. Called by `live`.

use std::time::Duration;

use ratatui::{
    Frame,
    style::{Color, Modifier, Style},
    text::{Line, Span, Text},
};

use super::{
    programs, reasons, rows,
    view::{Rows, Shown, View},
};
use crate::{
    render::Tone,
    table::{Grid, grid},
    terminal::{Page, harmless},
};

/// What the status line and the headings need besides the rows.
pub(super) struct State<'a> {
    pub(super) interval: Duration,
    pub(super) has_rates: bool,
    pub(super) colour: bool,
    /// The error of the last attempt to read the maps; None if it succeeded.
    pub(super) fault: Option<&'a str>,
    /// Why the table of programs is empty; None if it is not.
    pub(super) unmeasured: Option<&'a str>,
}

const KEYS: &str = "Tab table  Left/Right sort  r reverse  / filter  p pause  ? help  q quit";
/// How many lines of the screen are not rows: names of tables, status, headings, keys.
const BESIDE: usize = 4;

const HELP: &str = "\
Tab, Shift-Tab      services, backends, reasons, programs
b                   backends and back
Left, Right, <, >   the column to sort by; before the first one: what moves most
r                   the other way round
/                   filter by a text: Enter keeps it, Esc clears it
p, space            pause: nothing new is read
Up, Down, PageUp, PageDown, Home, End; j, k, g, G
?, h                this help
q, Esc, Ctrl-C      end

CPS, INPPS, OUTPPS, INBPS and OUTBPS are of the last interval, all other
numbers since the maps were made. A packet is counted with its bytes from the
IP header on. Connections made at sockets count, their packets do not.
(others): of no service port in particular. CPU% is of one processor.

Any key goes back.";

/// Draws the whole screen into `frame`. `all`: the rows of the shown table.
pub(super) fn draw(frame: &mut Frame<'_>, view: &mut View, all: &Rows, state: &State<'_>) {
    let area = frame.area();
    let height = usize::from(area.height);
    let mut lines = vec![tabs(view), about(view, all.len(), state)];
    if view.has_help {
        lines.extend(HELP.lines().map(Line::from));
    } else {
        let page = Page {
            width: Some(area.width.into()),
            ..Page::default()
        };
        let window = view.window(all.len(), height.saturating_sub(BESIDE).max(1));
        let of_top = || rows::columns(view.shown == Shown::Backends, state.has_rates);
        let grid = match all {
            Rows::Top(all) => grid(&page, &of_top(), &all[window]),
            Rows::Reasons(all) => grid(&page, reasons::COLUMNS, &all[window]),
            Rows::Programs(all) => grid(&page, programs::COLUMNS, &all[window]),
        };
        lines.extend(table(&grid, view.sorted_by(), state.colour));
    }
    lines.truncate(height.saturating_sub(1));
    lines.resize_with(height.saturating_sub(1), Line::default);
    lines.push(if view.is_typing {
        Line::from(format!("/{}_", harmless(&view.filter)))
    } else {
        Line::styled(KEYS, Style::new().add_modifier(Modifier::DIM))
    });
    frame.render_widget(Text::from(lines), area);
}

/// Returns the line with the names of the tables. The shown table is in brackets.
fn tabs(view: &View) -> Line<'static> {
    let mut spans = vec![Span::from("portolan top ")];
    for shown in Shown::ALL {
        let name = shown.name();
        spans.push(if shown == view.shown {
            let bold = Style::new().add_modifier(Modifier::BOLD);
            Span::styled(format!(" [{name}]"), bold)
        } else {
            Span::from(format!("  {name} "))
        });
    }
    Line::from(spans)
}

/// Returns the status line: how many rows there are, how often they are read, and how they are
/// sorted; or the error of the last read.
fn about(view: &View, rows: usize, state: &State<'_>) -> Line<'static> {
    if let Some(fault) = state.fault {
        let style = tone(Tone::Bad, state.colour);
        return Line::styled(
            format!("not read, trying again: {}", harmless(fault)),
            style,
        );
    }
    if let (Some(why), Shown::Programs) = (state.unmeasured, view.shown) {
        return Line::styled(why.to_owned(), tone(Tone::Warn, state.colour));
    }
    let mut parts = vec![match rows {
        1 => "1 row".to_owned(),
        rows => format!("{rows} rows"),
    }];
    parts.push(if view.is_paused {
        "paused".to_owned()
    } else {
        format!("every {} s", state.interval.as_secs_f64())
    });
    let order = view.sorted_by().unwrap_or("what moves most");
    let turned = if view.reverse { ", reversed" } else { "" };
    parts.push(format!("by {order}{turned}"));
    if !view.filter.is_empty() {
        parts.push(format!("with {:?}", view.filter));
    }
    Line::from(parts.join("; "))
}

fn table(grid: &Grid, sorted_by: Option<&str>, colour: bool) -> Vec<Line<'static>> {
    let headings = grid.headings.iter().map(|(heading, text)| {
        let mut style = Style::new().add_modifier(Modifier::REVERSED);
        if Some(*heading) == sorted_by {
            style = style.add_modifier(Modifier::BOLD | Modifier::UNDERLINED);
        }
        Span::styled(text.clone(), style)
    });
    let headings = Line::from(headings.collect::<Vec<_>>());
    let rows = grid.rows.iter().map(|cells| {
        let cells = cells.iter();
        let cells = cells.map(|(text, of)| Span::styled(text.clone(), tone(*of, colour)));
        Line::from(cells.collect::<Vec<_>>())
    });
    std::iter::once(headings).chain(rows).collect()
}

fn tone(tone: Tone, colour: bool) -> Style {
    match tone {
        _ if !colour => Style::new(),
        Tone::Plain => Style::new(),
        Tone::Good => Style::new().fg(Color::Green),
        Tone::Warn => Style::new().fg(Color::Yellow),
        Tone::Bad => Style::new().fg(Color::Red),
    }
}

#[cfg(test)]
#[path = "screen_tests.rs"]
mod tests;
