// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests that press keys and check which rows are shown.

use std::time::{Duration, Instant};

use proxy_common::Counter;

use super::*;
use crate::top::{looks::Sample, programs::tests::programs, rows::tests};

/// Returns two samples that were taken two seconds apart.
pub(in crate::top) fn looks() -> Looks {
    let start = Instant::now();
    let sample = |at, scale: u64| {
        let mut counters = vec![0; Counter::ALL.len()];
        counters[Counter::DroppedSource as usize] = 4;
        counters[Counter::RejectedNoEndpoint as usize] = 5;
        counters[Counter::BindRefused as usize] = scale;
        Sample {
            at,
            counters,
            counted: tests::counted(scale),
            programs: programs(&[
                (1, "ingress", scale, 400 * scale),
                (2, "egress", 10 * scale, 1_000 * scale),
            ]),
            names: tests::names(),
        }
    };
    Looks {
        before: Some(sample(start, 100)),
        now: sample(start + Duration::from_secs(2), 150),
    }
}

/// Returns the texts that the filter searches, one per row of a view.
fn words(view: &View) -> Vec<String> {
    match view.rows(&looks(), &Select::default()) {
        Rows::Top(rows) => rows.iter().map(Item::words).collect(),
        Rows::Reasons(rows) => rows.iter().map(Item::words).collect(),
        Rows::Programs(rows) => rows.iter().map(Item::words).collect(),
    }
}

/// Returns a view after these keys were pressed. None of them may end the command.
fn after(keys: &[Key]) -> View {
    let mut view = View::default();
    for key in keys {
        assert!(!view.press(*key), "{key:?} ends it");
    }
    view
}

fn typed(text: &str) -> Vec<Key> {
    text.chars().map(Key::Char).collect()
}

#[test]
fn tab_cycles_through_the_tables_and_b_toggles_the_backends() {
    let mut view = after(&[]);
    let mut seen = Vec::new();
    for _ in 0..=Shown::ALL.len() {
        seen.push(view.shown.name());
        view.press(Key::Tab);
    }
    assert_eq!(
        seen,
        ["services", "backends", "reasons", "programs", "services"]
    );
    assert_eq!(after(&[Key::BackTab]).shown, Shown::Programs);
    assert_eq!(after(&typed("b")).shown, Shown::Backends);
    assert_eq!(after(&typed("bb")).shown, Shown::Services);
    assert_eq!(words(&after(&[Key::Tab])).len(), 3, "every backend");
    let reasons = words(&after(&[Key::Tab, Key::Tab]));
    assert_eq!(
        reasons,
        [
            "(others) bind_refused_node_port",
            "shop/empty:http rejected_no_endpoint",
            "shop/pay:http dropped_source_range",
        ]
    );
    assert_eq!(words(&after(&[Key::BackTab])), ["egress", "ingress"]);
}

#[test]
fn arrow_keys_choose_the_sort_column_and_r_reverses_the_order() {
    let usual = words(&after(&[]));
    assert_eq!(
        usual,
        ["shop/cart:http", "shop/pay:http", "shop/empty:http"]
    );
    let right = after(&[Key::Right]);
    assert_eq!(right.sorted_by(), Some("SERVICE"));
    assert_eq!(
        words(&right),
        ["shop/cart:http", "shop/empty:http", "shop/pay:http"]
    );
    let refused = Shown::Services.headings(false);
    let refused = refused.iter().position(|one| *one == "REFUSED");
    let mut keys = vec![Key::Char('>'); refused.expect("a column") + 1];
    let by_refused = words(&after(&keys));
    assert_eq!(by_refused[0], "shop/empty:http");
    keys.push(Key::Char('r'));
    let mut turned = words(&after(&keys));
    turned.reverse();
    assert_eq!(turned, by_refused);
    assert_eq!(after(&[Key::Right, Key::Left]).sorted_by(), None);
    let last = after(&[Key::Left]);
    assert_eq!(last.sorted_by(), Some("AFFINITY"));
    let mut around = last;
    around.press(Key::Right);
    assert_eq!(around.sorted_by(), None);
    let other = after(&[Key::Right, Key::Tab]);
    assert_eq!(other.sorted_by(), None, "each table has its own order");
}

#[test]
fn a_filter_keeps_rows_with_its_text_while_it_is_typed() {
    let typing = after(&typed("/PAY"));
    assert!(typing.is_typing);
    assert_eq!(words(&typing), ["shop/pay:http"]);
    let mut corrected = typing.clone();
    corrected.press(Key::Backspace);
    assert_eq!(corrected.filter, "PA");
    let kept = after(&[typed("/q"), vec![Key::Enter]].concat());
    assert!(!kept.is_typing, "a letter of the filter is no command");
    assert_eq!(kept.filter, "q");
    assert_eq!(words(&kept), [""; 0]);
    let cleared = after(&[typed("/pay"), vec![Key::Escape]].concat());
    assert_eq!((cleared.filter.as_str(), cleared.is_typing), ("", false));
    let backends = after(&typed("b/10.40.1.11"));
    assert_eq!(words(&backends), ["shop/cart:http 10.40.1.11:8080"]);
}

#[test]
fn q_escape_and_interrupt_end_top_and_escape_only_closes_an_open_help() {
    for key in [Key::Char('q'), Key::Escape, Key::Interrupt] {
        assert!(View::default().press(key), "{key:?}");
    }
    let mut help = after(&[Key::Char('?')]);
    assert!(help.has_help);
    assert!(!help.press(Key::Escape), "back to the table");
    assert!(!help.has_help);
    assert!(after(&[Key::Char('h')]).press(Key::Char('q')));
    assert!(after(&typed("/a")).press(Key::Interrupt));
    assert!(after(&typed("p")).is_paused);
    assert!(!after(&typed("pp")).is_paused);
}

#[test]
fn the_screen_scrolls_by_rows_and_pages_and_stays_within_the_rows() {
    let mut view = View::default();
    let mut seen = |key| {
        view.press(key);
        view.window(25, 10)
    };
    assert_eq!(seen(Key::Up), 0..10);
    assert_eq!(seen(Key::Down), 1..11);
    assert_eq!(seen(Key::PageDown), 11..21);
    assert_eq!(seen(Key::PageDown), 15..25);
    assert_eq!(seen(Key::Char('k')), 14..24);
    assert_eq!(seen(Key::Home), 0..10);
    assert_eq!(seen(Key::End), 15..25);
    assert_eq!(seen(Key::PageUp), 5..15);
    assert_eq!(view.window(3, 10), 0..3, "fewer rows now");
}
