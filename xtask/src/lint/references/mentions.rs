// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Finds possible references in a document or doc comment: text in backticks, targets of links, and
//! plain words that may be paths. Does not check whether the targets exist. Used by `references`.

/// How a possible reference is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// A text in backticks.
    Code,
    /// The target of a Markdown link.
    Link,
    /// A word of plain text.
    Word,
}

/// A possible reference; `line` is the number of the line in which it begins.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Mention {
    pub(super) text: String,
    pub(super) kind: Kind,
    pub(super) line: usize,
    /// What the text is about: the first cell of the table's row, else the last heading.
    pub(super) subject: String,
}

/// Returns all possible references in a Markdown document, except those in fenced code blocks.
pub(super) fn in_markdown(text: &str) -> Vec<Mention> {
    let lines: Vec<_> = text.lines().collect();
    scan(&lines)
}

/// Returns all possible references in the doc comments (`//!`, `///`) of a Rust source.
pub(super) fn in_doc_comments(text: &str) -> Vec<Mention> {
    let comment = |line: &'_ str| -> Option<usize> {
        let start = line.len() - line.trim_start().len();
        let is_doc = line[start..].starts_with("//!")
            || line[start..].starts_with("///") && !line[start..].starts_with("////");
        is_doc.then_some(start + 3)
    };
    let lines: Vec<_> = text
        .lines()
        .map(|line| comment(line).map_or("", |start| &line[start..]))
        .collect();
    scan(&lines)
}

fn scan(lines: &[&str]) -> Vec<Mention> {
    let mut found = Vec::new();
    let mut heading = String::new();
    // The lines of one paragraph (a text in backticks may span lines) or of one row.
    let mut paragraph: Vec<&str> = Vec::new();
    let mut in_fence = false;
    for (at, line) in lines.iter().chain([&""]).enumerate() {
        let trimmed = line.trim_start();
        let is_fence = trimmed.starts_with("```");
        let is_heading = !in_fence
            && trimmed.trim_start_matches('#').starts_with(' ')
            && trimmed.starts_with('#');
        let is_row = !in_fence && trimmed.starts_with('|');
        if is_fence || in_fence || is_heading || is_row || trimmed.is_empty() {
            let start = at - paragraph.len();
            read(&paragraph.join("\n"), start + 1, &heading, &mut found);
            paragraph.clear();
        } else {
            paragraph.push(line);
        }
        if is_row {
            let cell = trimmed.split('|').nth(1).unwrap_or_default();
            read(line, at + 1, cell.trim().trim_matches('`'), &mut found);
        }
        if is_heading {
            trimmed
                .trim_start_matches('#')
                .trim()
                .clone_into(&mut heading);
            read(line, at + 1, &heading, &mut found);
        }
        in_fence ^= is_fence;
    }
    found
}

/// Adds a paragraph's texts in backticks, and the references outside them, to `found`.
fn read(text: &str, first_line: usize, subject: &str, found: &mut Vec<Mention>) {
    let line_of = |at: usize| first_line + text[..at].matches('\n').count();
    let mut push = |part: &str, kind, at| {
        let text = part.split_whitespace().collect::<Vec<_>>().join(" ");
        if !text.is_empty() {
            found.push(Mention {
                text,
                kind,
                line: line_of(at),
                subject: subject.to_owned(),
            });
        }
    };
    let mut at = 0;
    while let Some(start) = text[at..].find('`').map(|found| at + found) {
        let ticks = text[start..].len() - text[start..].trim_start_matches('`').len();
        let inner = start + ticks;
        plain(&text[at..start], at, &mut push);
        let Some(length) = closing(&text[inner..], ticks) else {
            at = inner;
            continue;
        };
        push(&text[inner..inner + length], Kind::Code, inner);
        at = inner + length + ticks;
    }
    plain(&text[at..], at, &mut push);
}

/// Returns the position of the next run of exactly `ticks` backticks; None without such a run.
fn closing(text: &str, ticks: usize) -> Option<usize> {
    let mut at = 0;
    loop {
        let start = at + text[at..].find('`')?;
        let run = text[start..].len() - text[start..].trim_start_matches('`').len();
        if run == ticks {
            return Some(start);
        }
        at = start + run;
    }
}

/// Passes links and words of a text without backticks to `push`: text, kind, position.
fn plain(text: &str, offset: usize, push: &mut impl FnMut(&str, Kind, usize)) {
    let mut at = 0;
    while let Some(start) = text[at..].find("](").map(|found| at + found + 2) {
        words(&text[at..start - 2], offset + at, push);
        let length = text[start..].find(')').unwrap_or(text.len() - start);
        push(&text[start..start + length], Kind::Link, offset + start);
        at = start + length;
    }
    words(&text[at..], offset + at, push);
}

fn words(text: &str, offset: usize, push: &mut impl FnMut(&str, Kind, usize)) {
    for word in text.split_whitespace() {
        let at = word.as_ptr() as usize - text.as_ptr() as usize;
        let is_around = |c: char| "()[],:;!?\"'*".contains(c);
        let word = word.trim_start_matches(is_around);
        let word = word.trim_end_matches(|c: char| is_around(c) || c == '.');
        push(word, Kind::Word, offset + at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(kind: Kind, text: &str) -> Vec<(String, usize)> {
        in_markdown(text)
            .into_iter()
            .filter(|mention| mention.kind == kind)
            .map(|mention| (mention.text, mention.line))
            .collect()
    }

    #[test]
    fn texts_in_backticks_are_found_with_their_lines() {
        for (text, expected) in [
            ("see `a/b.rs` and `c`", vec![("a/b.rs", 1), ("c", 1)]),
            ("one\ntwo `x` three", vec![("x", 2)]),
            (
                "wrapped `cargo\nxtask` then `y`",
                vec![("cargo xtask", 1), ("y", 2)],
            ),
            (
                "``a `tick` inside`` `b`",
                vec![("a `tick` inside", 1), ("b", 1)],
            ),
            ("a lone ` tick\n\nthen `z`", vec![("z", 3)]),
            ("```\n`fenced`\n```\n`after`", vec![("after", 4)]),
            ("| `cell` | `other` |", vec![("cell", 1), ("other", 1)]),
        ] {
            let expected: Vec<_> = expected
                .into_iter()
                .map(|(text, line)| (text.to_owned(), line))
                .collect();
            assert_eq!(of(Kind::Code, text), expected, "{text}");
        }
    }

    #[test]
    fn links_and_words_are_found_outside_of_backticks() {
        let text = "Read ([docs](docs/e2e.md)), (then xtask/src/main.rs). `no/link](x)`";
        assert_eq!(of(Kind::Link, text), [("docs/e2e.md".to_owned(), 1)]);
        let words = of(Kind::Word, text);
        assert!(
            words.contains(&("xtask/src/main.rs".to_owned(), 1)),
            "{words:?}"
        );
        assert!(words.iter().all(|(word, _)| !word.contains("no/link")));
    }

    #[test]
    fn a_mention_has_its_table_row_or_heading_as_subject() {
        let text = "## proxy-user\n`a`\n\n| `xtask` | `b` |\n| --- | --- |\n`c`";
        let subjects: Vec<_> = in_markdown(text)
            .into_iter()
            .filter(|mention| mention.kind == Kind::Code && mention.text != "xtask")
            .map(|mention| (mention.text, mention.subject))
            .collect();
        let expected = [("a", "proxy-user"), ("b", "xtask"), ("c", "proxy-user")];
        assert_eq!(
            subjects,
            expected.map(|(text, subject)| (text.to_owned(), subject.to_owned()))
        );
    }

    #[test]
    fn only_doc_comments_of_a_source_are_read() {
        let text = "//! Top `a`.\n// `b`\n/// Item `c\n/// d`.\nlet x = \"`e`\";\n    /// Field `f`.\n//// `g`";
        let found: Vec<_> = in_doc_comments(text)
            .into_iter()
            .filter(|mention| mention.kind == Kind::Code)
            .map(|mention| (mention.text, mention.line))
            .collect();
        let expected = [("a", 1), ("c d", 3), ("f", 6)];
        assert_eq!(found, expected.map(|(text, line)| (text.to_owned(), line)));
    }
}
