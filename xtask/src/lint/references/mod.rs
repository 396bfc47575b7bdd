// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether what documents and doc comments refer to exists: paths of the repository, and names of the code. Takes
//! the project's files, returns complaints. Called by `lint`.

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

/// Documents that are written by a program.
const GENERATED: &str = "lab/report/";

/// Files that are not the clone's: names that programs give them on a node, or in a cluster.
const ELSEWHERE: [&str; 0] = [];

/// One complaint per reference that leads nowhere. `foreign` names the crates whose items are not ours.
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
            let complaint = path_complaint(&tree, file, mention).or_else(|| {
                let is_name = is_document && mention.kind == Kind::Code;
                is_name
                    .then(|| name_complaint(&definitions, foreign, &mention.text))
                    .flatten()
            });
            if let Some(complaint) = complaint {
                found.push(format!("{}:{}: {complaint}", file.path, mention.line));
            }
        }
    }
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
    // In a row or section about a folder, a name without a folder is one of that folder's.
    let subject = tree.folder(&mention.subject, folder);
    if let Some(subject) = &subject {
        bases.extend([subject.clone(), format!("{subject}/src")]);
    }
    let anywhere = mention.kind == Kind::Code && subject.is_none();
    let bad = |path: &String| {
        let known = ELSEWHERE.contains(&path.as_str());
        match tree.find(path, &bases, anywhere) {
            _ if known => None,
            Found::Yes => None,
            Found::No => Some(format!(
                "`{path}` does not exist; write its path from the top of the clone, or take it out"
            )),
            Found::Ambiguous => Some(format!(
                "`{path}` could be several files; write its path from the top of the clone"
            )),
        }
    };
    tree.paths_of(mention).iter().find_map(bad)
}

fn name_complaint(
    definitions: &Definitions,
    foreign: &BTreeSet<String>,
    text: &str,
) -> Option<String> {
    let parts = symbols::parts(text)?;
    if foreign.contains(parts[0]) {
        return None;
    }
    let missing = definitions.missing(&parts)?;
    Some(format!(
        "`{text}`: no source defines `{missing}`; write the name that the code has now, or take it out"
    ))
}
