// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Splits a YAML file into its documents. Called by `documents::read`, and by `config` for its
//! file.

/// One document of a file.
#[derive(Clone, Copy, Debug)]
pub struct Document<'a> {
    /// The line of the file where the document begins, counted from 1.
    pub first_line: usize,
    pub text: &'a str,
}

/// Returns the first document, which may be empty.
pub fn first(text: &str) -> Document<'_> {
    let all = documents(text);
    let mut all = all.iter().copied();
    let nothing = Document {
        first_line: 1,
        text: "",
    };
    let before = all.next().unwrap_or(nothing);
    // Comments and directives may come before the first marker.
    match is_blank(before.text) {
        true => all.next().unwrap_or(before),
        false => before,
    }
}

/// Splits at lines that begin with `---` or `...`; in YAML no line of content begins with these.
pub(super) fn documents(text: &str) -> Vec<Document<'_>> {
    // A byte order mark of UTF-8, which some editors add.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut documents = Vec::new();
    let (mut start, mut first_line, mut offset) = (0, 1, 0);
    for (index, line) in text.split_inclusive('\n').enumerate() {
        let rest = line.strip_prefix("---").or(line.strip_prefix("..."));
        let rest = rest.filter(|rest| rest.is_empty() || rest.starts_with([' ', '\t', '\r', '\n']));
        if let Some(rest) = rest {
            documents.push(Document {
                first_line,
                text: text.get(start..offset).unwrap_or_default(),
            });
            (start, first_line) = (offset + line.len(), index + 2);
            // Content may follow the marker on its own line.
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

/// Whether the text holds only blanks, comments and directives.
pub fn is_blank(text: &str) -> bool {
    text.lines()
        .map(str::trim)
        .all(|line| line.is_empty() || line.starts_with(['#', '%']))
}
