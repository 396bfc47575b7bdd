// SPDX-License-Identifier: Apache-2.0 OR MIT

use std::{fs, path::Path};

/// Returns the anchor that GitHub makes from a heading of a Markdown page.
fn anchor(heading: &str) -> String {
    let kept = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = kept.replace(' ', "-");
    let is_kept = |one: &char| one.is_alphanumeric() || matches!(one, '-' | '_');
    kept.chars().filter(is_kept).collect()
}

/// Collects every documentation page with an anchor that the sources in a folder mention.
fn pages(folder: &Path, found: &mut Vec<String>) {
    for entry in fs::read_dir(folder).expect("a folder").flatten() {
        if entry.path().is_dir() {
            pages(&entry.path(), found);
            continue;
        }
        let text = fs::read_to_string(entry.path()).expect("a source");
        let quoted = text.split('"').filter(|part| part.starts_with("docs/"));
        found.extend(
            quoted
                .filter(|part| part.contains(".md#"))
                .map(ToOwned::to_owned),
        );
    }
}

#[test]
fn every_page_and_heading_that_a_finding_refers_to_exists() {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut named = Vec::new();
    pages(&package.join("src/explain"), &mut named);
    assert!(named.len() > 8, "{named:?}");
    for page in named {
        let (file, wanted) = page.split_once('#').expect("an anchor");
        let text = fs::read_to_string(package.join("../..").join(file)).expect("a page");
        let mut headings = text.lines().filter(|line| line.starts_with('#'));
        let is_set = text.contains(&format!("<a id=\"{wanted}\"></a>"));
        assert!(
            is_set || headings.any(|line| anchor(line) == wanted),
            "{page}"
        );
    }
}
