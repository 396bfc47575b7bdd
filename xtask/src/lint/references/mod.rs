// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Checks that paths and names in documents and doc comments exist in the repository's files and
//! Rust code. Called by `lint`.

mod mentions;
mod paths;
mod symbols;

use std::collections::BTreeSet;

use self::{
    mentions::{Kind, Mention},
    paths::{Found, Tree},
    symbols::Definitions,
};
use super::File;

/// The folder of documents that a program writes; they are not checked.
const GENERATED: &str = "lab/report/";

/// Returns a line for each reference to a path or name that does not exist. `foreign` has the names
/// of external crates, whose items are not checked.
pub(super) fn check(files: &[File], foreign: &BTreeSet<String>) -> Vec<String> {
    let tree = Tree::new(files.iter().map(|file| file.path.as_str()));
    let mut definitions = Definitions::default();
    for file in files.iter().filter(|file| file.is_rust()) {
        definitions.read(&file.path, &file.text);
    }
    let mut found = Vec::new();
    for file in files {
        let is_document = file.path.ends_with(".md") && !file.path.starts_with(GENERATED);
        let mentions = if is_document {
            mentions::in_markdown(&file.text)
        } else if file.is_rust() {
            mentions::in_doc_comments(&file.text)
        } else {
            continue;
        };
        for mention in &mentions {
            let complaint = path_complaint(&tree, file, mention)
                .or_else(|| name_complaint(&definitions, foreign, mention));
            if let Some(complaint) = complaint {
                found.push(format!("{}:{}: {complaint}", file.path, mention.line));
            }
        }
    }
    // A link's text and target can be the same path, which gives the same line twice.
    found.dedup();
    found
}

fn path_complaint(tree: &Tree, file: &File, mention: &Mention) -> Option<String> {
    let folder = file.path.rsplit_once('/').map_or("", |(folder, _)| folder);
    let mut bases = vec![folder.to_owned(), String::new()];
    if let Some(module) = file.path.strip_suffix(".rs") {
        bases.push(module.to_owned());
        let (package, _) = file.path.split_once('/').unwrap_or_default();
        bases.extend([package.to_owned(), format!("{package}/src")]);
    }
    // In a row or section about a folder, a name alone means a file of that folder.
    let subject = tree.folder(&mention.subject, folder);
    if let Some(subject) = &subject {
        bases.extend([subject.clone(), format!("{subject}/src")]);
    }
    let anywhere = mention.kind == Kind::Code && subject.is_none();
    let bad = |path: &String| match tree.find(path, &bases, anywhere) {
        Found::Yes => None,
        Found::No => Some(format!(
            "`{path}` does not exist; write its path from the top of the clone, or remove it"
        )),
        Found::Ambiguous => Some(format!(
            "`{path}` could be several files; write its path from the top of the clone"
        )),
    };
    tree.paths_of(mention).iter().find_map(bad)
}

fn name_complaint(
    definitions: &Definitions,
    foreign: &BTreeSet<String>,
    mention: &Mention,
) -> Option<String> {
    let text = &mention.text;
    let parts = symbols::parts(text)?;
    if mention.kind != Kind::Code || foreign.contains(parts[0]) {
        return None;
    }
    let missing = definitions.missing(&parts)?;
    Some(format!(
        "`{text}`: no source defines `{missing}`; write its present name, or remove it"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaints(path: &str, text: &str) -> Vec<String> {
        let files = [
            File::new("proxy-user/src/agent/mod.rs", "pub struct Agent;"),
            File::new("proxy-user/tests/support/agent.rs", ""),
            File::new("docs/e2e.md", ""),
            File::new(path, text),
        ];
        check(&files, &BTreeSet::from(["std".to_owned()]))
    }

    #[test]
    fn a_missing_path_is_reported_with_its_line() {
        let found = complaints("README.md", "Begin\nwith `proxy-user/src/agent.rs`.");
        assert_eq!(found.len(), 1);
        let start = "README.md:2: `proxy-user/src/agent.rs` does not exist; ";
        assert!(found[0].starts_with(start), "{}", found[0]);
    }

    #[test]
    fn a_file_name_in_a_packages_table_row_means_a_file_of_that_package() {
        let row = |name: &str| format!("| proxy-user | the agent | `{name}` |");
        assert_eq!(complaints("README.md", &row("agent.rs")).len(), 1);
        assert_eq!(complaints("README.md", &row("agent/mod.rs")).len(), 0);
    }

    #[test]
    fn existing_paths_and_names_are_fine_in_documents_and_doc_comments() {
        for (path, text) in [
            (
                "README.md",
                "`docs/e2e.md` [x](docs/e2e.md#a) `agent::Agent` `std::fs`",
            ),
            ("docs/more.md", "`e2e.md` [x](../docs/e2e.md) `proxy-user`"),
            (
                "proxy-user/src/main.rs",
                "//! See `agent/mod.rs`, `crate::agent`, docs/e2e.md.",
            ),
            (
                "proxy-user/src/main.rs",
                "fn f() {} // `gone.rs` `gone::gone`",
            ),
            ("lab/report/README.md", "`gone.rs`"),
        ] {
            assert_eq!(complaints(path, text), [""; 0], "{path}: {text}");
        }
    }

    #[test]
    fn an_undefined_rust_name_is_reported() {
        for (path, text) in [
            ("README.md", "`agent::Gone`"),
            ("proxy-user/src/main.rs", "//! Called by `gone::Agent`."),
        ] {
            assert_eq!(complaints(path, text).len(), 1, "{path}: {text}");
        }
    }
}
