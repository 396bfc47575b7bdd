// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Splits a YAML file into its documents. Called by `documents::read`.

/// One document of a file.
pub(super) struct Document<'a> {
    /// Counted from 1.
    pub(super) first_line: usize,
    pub(super) text: &'a str,
}

/// Splits at lines that begin with `---`; in YAML no line of content begins so.
pub(super) fn documents(text: &str) -> Vec<Document<'_>> {
    let mut documents = Vec::new();
    let (mut start, mut first_line, mut offset) = (0, 1, 0);
    for (index, line) in text.split_inclusive('\n').enumerate() {
        let marker = line
            .strip_prefix("---")
            .is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '\t', '\r', '\n']));
        if marker {
            documents.push(Document {
                first_line,
                text: text.get(start..offset).unwrap_or_default(),
            });
            (start, first_line) = (offset + line.len(), index + 2);
            // Content may follow the marker on its own line.
            let rest = line.get(3..).unwrap_or_default();
            if !is_blank(rest) {
                (start, first_line) = (offset + 3, index + 1);
            }
        }
        offset += line.len();
    }
    documents.push(Document {
        first_line,
        text: text.get(start..).unwrap_or_default(),
    });
    documents
}

/// Whether the text holds only blanks, comments, directives and document ends.
pub(super) fn is_blank(text: &str) -> bool {
    text.lines()
        .map(str::trim)
        .all(|line| line.is_empty() || line.starts_with(['#', '%']) || line == "...")
}
