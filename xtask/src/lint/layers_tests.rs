// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The order of layers on small made-up sources.

use super::*;

const LAYERS: &[Layers] = &[Layers {
    within: "user/src/datapath",
    order: &["sys", "maps", "store sweep"],
    open: &["error"],
}];

/// The folder as it is without the file that a test is about.
const FOLDER: [(&str, &str); 7] = [
    (
        "mod.rs",
        "mod sys; pub use error::Error; pub use self::{store::Store, maps::family::{Family}}; pub struct Datapath;",
    ),
    ("error.rs", "use crate::datapath::store::Store;"),
    ("sys.rs", ""),
    ("maps/mod.rs", ""),
    ("store/mod.rs", ""),
    ("sweep.rs", ""),
    ("cleanup.rs", "use super::{store, sys, Datapath};"),
];

fn complaints(changed: &[(&str, &str)]) -> Vec<String> {
    let kept = FOLDER
        .iter()
        .filter(|(path, _)| changed.iter().all(|(other, _)| other != path));
    let files: Vec<_> = kept
        .chain(changed)
        .map(|(path, text)| File {
            path: format!("user/src/datapath/{path}"),
            text: (*text).to_owned(),
        })
        .collect();
    check(&files, LAYERS)
}

#[test]
fn lower_layers_open_modules_and_the_own_module_may_be_used() {
    for text in [
        "use crate::datapath::{sys, maps::Table};",
        "use super::{sys::Fd, error::Error, Error as Fault};",
        "use super::store::change::Change;",
        "use crate::{plan::Plan, model};",
        "use std::collections::HashMap; fn f() { self::g(); Table::new() }",
        "mod tests { use super::*; use super::super::sys; }",
    ] {
        let found = complaints(&[("store/mod.rs", text)]);
        assert_eq!(found, [""; 0], "{text}");
    }
}

#[test]
fn a_layer_above_is_refused_however_the_path_is_written() {
    for (path, text) in [
        ("sys.rs", "use crate::datapath::maps::Table;"),
        ("sys.rs", "use crate::{plan, datapath::{error, maps}};"),
        ("sys.rs", "use super::maps;"),
        ("sys.rs", "fn f() { super::maps::open() }"),
        ("sys.rs", "mod tests { use super::super::maps; }"),
        ("maps/family.rs", "use super::super::store::Store;"),
        ("maps/mod.rs", "use super::cleanup::Scope;"),
        ("maps/mod.rs", "use super::Datapath;"),
        ("maps/mod.rs", "use super::*;"),
        ("maps/mod.rs", "use crate::datapath::{self};"),
    ] {
        let found = complaints(&[(path, text)]);
        assert_eq!(found.len(), 1, "{path}: {text}: {found:?}");
        let place = format!("user/src/datapath/{path}:1: uses ");
        assert!(found[0].starts_with(&place), "{}", found[0]);
    }
}

#[test]
fn modules_of_one_layer_do_not_use_each_other() {
    let found = complaints(&[("sweep.rs", "use super::store::Store;")]);
    assert_eq!(found.len(), 1);
    assert!(
        found[0].contains("`store` and `sweep` are in one layer"),
        "{}",
        found[0]
    );
}

#[test]
fn a_re_export_is_refused_with_the_module_that_it_comes_from() {
    for (text, origin) in [
        ("use super::Store;", "crate::datapath::store"),
        ("use crate::datapath::{Family};", "crate::datapath::maps"),
    ] {
        let found = complaints(&[("sweep.rs", text)]);
        assert_eq!(found.len(), 1, "{text}");
        assert!(found[0].ends_with(origin), "{}", found[0]);
    }
}

#[test]
fn a_circle_inside_a_layer_is_found_outside_of_tests() {
    let apply = ("store/apply.rs", "use super::delta::Delta;");
    let delta = ("store/delta.rs", "use crate::datapath::store::ids::Ids;");
    let ids = |text| complaints(&[apply, delta, ("store/ids.rs", text)]);
    assert_eq!(ids("mod tests { use super::super::apply; }"), [""; 0]);
    let found = ids("use super::{apply, Store};");
    assert_eq!(
        found,
        ["user/src/datapath/store: a circle: apply -> delta -> ids -> apply"]
    );
}

#[test]
fn an_order_that_names_what_is_not_there_is_refused() {
    let files = [File {
        path: "user/src/datapath/sys.rs".to_owned(),
        text: String::new(),
    }];
    assert_eq!(check(&files, LAYERS).len(), 3);
}
