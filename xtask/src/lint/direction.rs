// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which crates and modules a file may not use. Takes the sources and the list that `rules` gives, returns complaints.
//! Called by `lint`; `layers` checks the order among modules.

use super::{
    File,
    source::{self, NamedPath},
};

/// Files under `within` may use nothing that starts with one of `forbidden`: a crate (`aya`), or a module
/// of the same crate (`crate::agent`).
pub(super) struct Rule {
    /// A path from the clone's top: a file, a folder, or a module's path without `.rs`.
    pub(super) within: &'static str,
    pub(super) forbidden: &'static [&'static str],
    pub(super) because: &'static str,
}

impl Rule {
    fn covers(&self, path: &str) -> bool {
        path.strip_prefix(self.within)
            .is_some_and(|rest| rest.is_empty() || rest == ".rs" || rest.starts_with('/'))
    }
}

/// One complaint per forbidden path.
pub(super) fn check(files: &[File], rules: &[Rule]) -> Vec<String> {
    let mut found = Vec::new();
    for file in files.iter().filter(|file| file.is_rust()) {
        let rules: Vec<_> = rules
            .iter()
            .filter(|rule| rule.covers(&file.path))
            .collect();
        if rules.is_empty() {
            continue;
        }
        let module = module_of(&file.path);
        for path in source::paths(&file.text) {
            let used = resolve(&path, &module);
            for rule in &rules {
                if let Some(forbidden) = rule.forbidden.iter().find(|item| is_within(&used, item)) {
                    found.push(format!(
                        "{}:{}: uses {}, but {} may not use {forbidden}: {}",
                        file.path,
                        path.line,
                        path.segments.join("::"),
                        rule.within,
                        rule.because
                    ));
                }
            }
        }
    }
    found
}

/// The module that a file holds, from its crate's root: `crate`, `crate::planner::topology`.
pub(super) fn module_of(path: &str) -> Vec<String> {
    let inner = path.split_once("/src/").map_or(path, |(_, inner)| inner);
    let inner = inner.strip_suffix(".rs").unwrap_or(inner);
    let mut module = vec!["crate".to_owned()];
    module.extend(inner.split('/').map(str::to_owned));
    if matches!(
        module.last().map(String::as_str),
        Some("mod" | "lib" | "main")
    ) {
        module.pop();
    }
    module
}

/// The path from the crate's root where it starts with `crate`, `self` or `super`; else as written.
pub(super) fn resolve(path: &NamedPath, module: &[String]) -> Vec<String> {
    let mut base: Vec<String> = module.iter().chain(&path.inside).cloned().collect();
    let mut rest = path.segments.as_slice();
    match rest.first().map(String::as_str) {
        Some("self") => rest = &rest[1..],
        Some("super") => {
            while let Some((_, tail)) = rest.split_first().filter(|(first, _)| *first == "super") {
                base.pop();
                rest = tail;
            }
        }
        _ => return path.segments.clone(),
    }
    base.extend(rest.iter().cloned());
    base
}

fn is_within(used: &[String], forbidden: &str) -> bool {
    let mut used = used.iter();
    forbidden
        .split("::")
        .all(|segment| used.next().is_some_and(|word| word == segment))
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: &[Rule] = &[
        Rule {
            within: "proxy-user/src/planner",
            forbidden: &["aya", "crate::datapath"],
            because: "it is pure",
        },
        Rule {
            within: "proxy-user/src/plan",
            forbidden: &["tokio"],
            because: "it is data",
        },
    ];

    fn complaints(path: &str, text: &str) -> usize {
        check(
            &[File {
                path: path.to_owned(),
                text: text.to_owned(),
            }],
            RULES,
        )
        .len()
    }

    #[test]
    fn a_forbidden_crate_is_found_in_use_lines_groups_and_paths() {
        let file = "proxy-user/src/planner/topology.rs";
        for text in [
            "use aya;",
            "use aya::maps::Array;",
            "use {std::fmt, aya::Pod};",
            "fn f(_: aya::Ebpf) {}",
        ] {
            assert_eq!(complaints(file, text), 1, "{text}");
        }
        assert_eq!(
            complaints(file, "use std::fmt; // aya::Pod\nuse ayatollah::x;"),
            0
        );
    }

    #[test]
    fn a_forbidden_module_is_found_however_the_path_to_it_begins() {
        for (path, text) in [
            ("proxy-user/src/planner.rs", "use crate::datapath::Apply;"),
            (
                "proxy-user/src/planner/mod.rs",
                "use super::datapath::Apply;",
            ),
            (
                "proxy-user/src/planner/ids.rs",
                "use super::super::datapath;",
            ),
            (
                "proxy-user/src/planner/ids.rs",
                "mod tests { use super::super::super::datapath::X; }",
            ),
            (
                "proxy-user/src/planner/mod.rs",
                "use crate::{plan, datapath::{self}};",
            ),
        ] {
            assert_eq!(complaints(path, text), 1, "{path}: {text}");
        }
    }

    #[test]
    fn a_module_of_the_same_name_elsewhere_is_another_one() {
        assert_eq!(
            complaints("proxy-user/src/planner/mod.rs", "use self::datapath::X;"),
            0
        );
        assert_eq!(
            complaints(
                "proxy-user/src/planner/ids.rs",
                "mod tests { use super::datapath::X; }"
            ),
            0
        );
    }

    #[test]
    fn a_rule_covers_its_file_or_folder_only() {
        assert_eq!(
            complaints("proxy-user/src/planner/a.rs", "use tokio::x;"),
            0
        );
        assert_eq!(complaints("proxy-user/src/plan.rs", "use tokio::x;"), 1);
        assert_eq!(complaints("proxy-user/src/syncer.rs", "use aya::x;"), 0);
    }
}
