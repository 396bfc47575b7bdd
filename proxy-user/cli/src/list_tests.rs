// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests that compare tables at 80 and 200 columns, and other formats, with those in `pictures`.

use std::{fs, path::PathBuf};

use datapath::read::{BackendRow, Share};

use super::*;
use crate::{affinity, backends::NamedBackend, cell::Name, flows, services, sockets};

const RENEW: &str = "PORTOLAN_UPDATE_DOCS=1 cargo test -p portolan-cli --lib pictures";

pub(crate) fn drawn<R: Row>(page: &Page, format: &Format, rows: &[R]) -> String {
    let mut out = Vec::new();
    write(&mut out, page, format, true, rows).expect("written");
    String::from_utf8(out).expect("text")
}

pub(crate) fn page(width: usize) -> Page {
    Page {
        width: Some(width),
        ..Page::default()
    }
}

/// Compares the output `drawn` with the file of this name in the folder `pictures`.
pub(crate) fn compare(name: &str, drawn: &str) {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src/pictures");
    let file = folder.join(format!("{name}.txt"));
    if std::env::var_os("PORTOLAN_UPDATE_DOCS").is_some() {
        fs::create_dir_all(folder).expect("the folder");
        fs::write(&file, drawn).expect("the picture");
    }
    let kept = fs::read_to_string(&file).unwrap_or_default();
    assert_eq!(drawn, kept, "{name}; if it is as it should be: {RENEW}");
}

fn compare_all<R: Row>(name: &str, rows: &[R]) {
    for width in [80, 200] {
        let table = drawn(&page(width), &Format::Table, rows);
        for line in table.lines() {
            assert!(line.chars().count() <= width, "{width}: {line}");
        }
        compare(&format!("{name}-{width}"), &table);
    }
    let wide = drawn(&page(80), &Format::Wide, rows);
    compare(&format!("{name}-wide"), &wide);
}

#[test]
fn tables_match_their_stored_pictures() {
    compare_all("services", &services::tests::rows());
    compare_all("flows", &flows::tests::rows());
    compare_all("sockets", &sockets::tests::rows());
    let backend = |service: &str, sets: &[&'static str]| NamedBackend {
        row: BackendRow {
            service: service.into(),
            port_name: "http".into(),
            address: "10.40.1.10:8080".parse().expect("an address"),
            service_port: 80,
            protocol: "TCP",
            sets: sets.to_vec(),
            shares: vec![Share { slots: 1, of: 3 }; sets.len()],
            generation: 2,
            backend_id: 17,
        },
        pod: (!sets.is_empty()).then(|| Name::new("shop/cart-a".into())),
    };
    let rows = [
        backend("shop/cart", &["cluster", "local"]),
        backend("shop/other", &[]),
    ];
    compare_all("backends", &rows);
    compare_all("affinity", &affinity::tests::rows());
}

#[test]
fn colours_are_on_terminals_only_and_take_no_room() {
    let rows = flows::tests::rows();
    let plain = drawn(&page(200), &Format::Table, &rows);
    assert!(!plain.contains('\x1b'));
    let mut page = page(200);
    page.colour = true;
    let coloured = drawn(&page, &Format::Table, &rows);
    let green = "\x1b[32mestablished\x1b[0m";
    assert!(coloured.contains(green), "{coloured}");
    let codes = ["\x1b[31m", "\x1b[32m", "\x1b[33m", "\x1b[0m"].iter();
    let without = codes.fold(coloured, |text, code| text.replace(code, ""));
    assert_eq!(without, plain);
}

#[test]
fn every_format_has_the_rows() {
    let rows = flows::tests::rows();
    let page = Page::default();
    let json = drawn(&page, &Format::Json, &rows);
    let [json, yaml]: [serde_json::Value; 2] = [
        serde_json::from_str(&json).expect("JSON"),
        serde_saphyr::from_str(&drawn(&page, &Format::Yaml, &rows)).expect("YAML"),
    ];
    assert_eq!(json[1]["idleSeconds"], 12_345);
    assert_eq!(json, yaml);
    let none: [flows::FlowRow; 0] = [];
    assert_eq!(drawn(&page, &Format::Json, &none), "[]\n");
}

#[test]
fn the_flag_reverse_reverses_every_order() {
    for flags in ["", "--sort-by frontend"] {
        let show = crate::args::tests::parsed(flags);
        let order = order(&show).expect("a column");
        let (mut forth, mut back) = (services::tests::rows(), services::tests::rows());
        sort(&mut forth, order, false);
        sort(&mut back, order, true);
        back.reverse();
        assert_eq!(forth, back);
    }
}
