// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Splits a Rust source into words and symbols. Used by `references` and `names`.

use proc_macro2::{Delimiter, LexError, Spacing, TokenStream, TokenTree};

/// A word or symbol of a Rust source.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Token {
    Word(String),
    /// `::`
    Separator,
    Other(char),
}

/// Returns the words and symbols of a Rust source with their line numbers, without comments,
/// literals and lifetimes. A doc comment is an attribute `doc`.
pub(super) fn tokens(text: &str) -> Vec<(Token, usize)> {
    let parsed = text.parse().or_else(|error: LexError| {
        // A text or comment that is not finished ends with the file.
        text[..error.span().byte_range().start].parse()
    });
    let mut found = Vec::new();
    flatten(parsed.unwrap_or_default(), &mut found);
    found
}

fn flatten(stream: TokenStream, found: &mut Vec<(Token, usize)>) {
    let mut trees = stream.into_iter();
    while let Some(tree) = trees.next() {
        let line = tree.span().start().line;
        match tree {
            TokenTree::Ident(word) => found.push((Token::Word(word.to_string()), line)),
            TokenTree::Literal(_) => {}
            TokenTree::Group(group) => {
                let [open, close] = match group.delimiter() {
                    Delimiter::Parenthesis => ['(', ')'],
                    Delimiter::Bracket => ['[', ']'],
                    Delimiter::Brace | Delimiter::None => ['{', '}'],
                };
                found.push((Token::Other(open), line));
                flatten(group.stream(), found);
                found.push((Token::Other(close), group.span_close().start().line));
            }
            TokenTree::Punct(symbol) => match symbol.as_char() {
                // The name of the lifetime follows.
                '\'' => _ = trees.next(),
                ':' if symbol.spacing() == Spacing::Joint => {
                    trees.next();
                    found.push((Token::Separator, line));
                }
                symbol => found.push((Token::Other(symbol), line)),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<(String, usize)> {
        let word = |(token, line)| match token {
            Token::Word(word) => Some((word, line)),
            _ => None,
        };
        tokens(text).into_iter().filter_map(word).collect()
    }

    #[test]
    fn line_numbers_count_through_comments_and_string_literals() {
        let text = "a /* x\n y */ b \"z\n\" c\nd // e\nf";
        let expected = [("a", 1), ("b", 2), ("c", 3), ("d", 4), ("f", 5)];
        assert_eq!(
            words(text),
            expected.map(|(word, line)| (word.to_owned(), line))
        );
    }

    #[test]
    fn an_unterminated_literal_or_comment_ends_with_the_file() {
        for text in ["a \"b", "a /* b", "a r#\"b", "a '\\"] {
            assert_eq!(words(text), [("a".to_owned(), 1)], "{text}");
        }
    }
}
