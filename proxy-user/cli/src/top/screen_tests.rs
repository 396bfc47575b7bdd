// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests that compare the live screen at 80 and 200 columns with the files in the folder
//! `pictures`.

use ratatui::{Terminal, backend::TestBackend};

use super::*;
use crate::{
    args::Select,
    render::tests::compare,
    top::view::{Key, tests::looks},
};

/// Returns the screen as text, with 20 lines of `columns` columns, after these keys were pressed.
fn drawn(columns: u16, keys: &[Key], fault: Option<&str>) -> String {
    let mut view = View::default();
    for key in keys {
        view.press(*key);
    }
    let looks = looks();
    let rows = view.rows(&looks, &Select::default());
    let state = State {
        interval: Duration::from_secs(2),
        has_rates: true,
        colour: true,
        fault,
        unmeasured: None,
    };
    let mut terminal = Terminal::new(TestBackend::new(columns, 20)).expect("a terminal");
    let drawn = terminal.draw(|frame| draw(frame, &mut view, &rows, &state));
    let buffer = drawn.expect("to memory").buffer;
    let cells = buffer.content().chunks(columns.into());
    let line = |cells: &[ratatui::buffer::Cell]| {
        let line: String = cells.iter().map(ratatui::buffer::Cell::symbol).collect();
        format!("{}\n", line.trim_end())
    };
    cells.map(line).collect()
}

#[test]
fn the_live_screen_matches_its_stored_pictures() {
    let tab = Key::Tab;
    let filter = [Key::Char('/'), Key::Char('p'), Key::Char('a')];
    for (name, keys) in [
        ("services", &[][..]),
        ("backends", &[tab, Key::Right, Key::Char('r')]),
        ("reasons", &[tab, tab, Key::Char('p')]),
        ("programs", &[tab, tab, tab]),
        ("help", &[Key::Char('?')]),
        ("filter", &filter),
    ] {
        for columns in [80, 200] {
            let drawn = drawn(columns, keys, None);
            compare(&format!("top-live-{name}-{columns}"), &drawn);
        }
    }
}

#[test]
fn a_failed_read_is_shown_above_the_last_known_rows() {
    let drawn = drawn(80, &[], Some("nothing is\x1b[31m pinned"));
    assert!(
        drawn.contains("not read, trying again: nothing is?[31m pinned"),
        "{drawn}"
    );
    assert!(drawn.contains("shop/cart:http"), "{drawn}");
}

#[test]
fn the_live_screen_fits_into_small_terminals() {
    let mut view = View::default();
    let looks = looks();
    let rows = view.rows(&looks, &Select::default());
    let state = State {
        interval: Duration::from_secs(1),
        has_rates: false,
        colour: false,
        fault: None,
        unmeasured: None,
    };
    for (columns, lines) in [(1, 1), (10, 2), (20, 3), (79, 5)] {
        let mut terminal = Terminal::new(TestBackend::new(columns, lines)).expect("a terminal");
        let drawn = terminal.draw(|frame| draw(frame, &mut view, &rows, &state));
        drawn.expect("to memory");
    }
}
