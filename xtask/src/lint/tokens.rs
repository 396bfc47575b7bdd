// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Splits a Rust source into words and symbols. Used by `references` and `names`.

/// A word or symbol of a Rust source.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Token {
    Word(String),
    /// `::`
    Separator,
    Other(char),
}

/// Returns the words and symbols of a Rust source with their line numbers, without comments,
/// strings, character literals and lifetimes.
pub(super) fn tokens(text: &str) -> Vec<(Token, usize)> {
    let chars: Vec<char> = text.chars().collect();
    let at = |i: usize| chars.get(i).copied().unwrap_or('\0');
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut tokens = Vec::new();
    let mut line = 1;
    let mut i = 0;
    while i < chars.len() {
        let start = i;
        match chars[i] {
            '/' if at(i + 1) == '/' => {
                while i < chars.len() && chars[i] != '\n' {
                    i += 1;
                }
            }
            '/' if at(i + 1) == '*' => i = end_of_comment(&chars, i),
            'r' | 'b' if raw_hashes(&chars, i).is_some() => i = end_of_raw(&chars, i),
            '"' => i = end_of_text(&chars, i),
            '\'' if at(i + 1) == '\\' || at(i + 2) == '\'' => {
                i += if at(i + 1) == '\\' { 3 } else { 2 };
                while i < chars.len() && chars[i] != '\'' {
                    i += 1;
                }
                i += 1;
            }
            '\'' => {
                i += 1;
                while is_word(at(i)) {
                    i += 1;
                }
            }
            ':' if at(i + 1) == ':' => {
                tokens.push((Token::Separator, line));
                i += 2;
            }
            c if is_word(c) => {
                while is_word(at(i)) {
                    i += 1;
                }
                tokens.push((Token::Word(chars[start..i].iter().collect()), line));
            }
            c => {
                if !c.is_whitespace() {
                    tokens.push((Token::Other(c), line));
                }
                i += 1;
            }
        }
        let end = i.min(chars.len());
        line += chars[start..end].iter().filter(|c| **c == '\n').count();
    }
    tokens
}

/// Returns the position after a block comment that begins at `start`; block comments may be nested.
fn end_of_comment(chars: &[char], start: usize) -> usize {
    let mut depth = 0;
    let mut i = start;
    while i + 1 < chars.len() {
        match (chars[i], chars[i + 1]) {
            ('/', '*') => (depth, i) = (depth + 1, i + 2),
            ('*', '/') => (depth, i) = (depth - 1, i + 2),
            _ => i += 1,
        }
        if depth == 0 {
            return i;
        }
    }
    chars.len()
}

/// Returns how many `#` the raw string at `start` has (`r"`: 0); None if there is none.
fn raw_hashes(chars: &[char], start: usize) -> Option<usize> {
    let mut i = start;
    if i > 0 && (chars[i - 1].is_alphanumeric() || chars[i - 1] == '_') {
        return None;
    }
    if chars[i] == 'b' {
        i += 1;
    }
    if chars.get(i) != Some(&'r') {
        return None;
    }
    let hashes = chars[i + 1..].iter().take_while(|c| **c == '#').count();
    (chars.get(i + 1 + hashes) == Some(&'"')).then_some(hashes)
}

fn end_of_raw(chars: &[char], start: usize) -> usize {
    let hashes = raw_hashes(chars, start).unwrap_or(0);
    let mut i = start;
    while i < chars.len() && chars[i] != '"' {
        i += 1;
    }
    i += 1;
    while i < chars.len() {
        let closes = chars[i] == '"'
            && chars[i + 1..]
                .iter()
                .take_while(|c| **c == '#')
                .take(hashes)
                .count()
                == hashes;
        if closes {
            return i + 1 + hashes;
        }
        i += 1;
    }
    chars.len()
}

fn end_of_text(chars: &[char], start: usize) -> usize {
    let mut i = start + 1;
    while i < chars.len() && chars[i] != '"' {
        i += if chars[i] == '\\' { 2 } else { 1 };
    }
    i + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<(String, usize)> {
        tokens(text)
            .into_iter()
            .filter_map(|(token, line)| match token {
                Token::Word(word) => Some((word, line)),
                _ => None,
            })
            .collect()
    }

    #[test]
    fn lines_are_counted_through_comments_and_texts() {
        let text = "a /* x\n y */ b \"z\n\" c\nd // e\nf";
        let expected = [("a", 1), ("b", 2), ("c", 3), ("d", 4), ("f", 5)];
        assert_eq!(
            words(text),
            expected.map(|(word, line)| (word.to_owned(), line))
        );
    }

    #[test]
    fn an_unfinished_text_or_comment_ends_with_the_file() {
        for text in ["a \"b", "a /* b", "a r#\"b", "a '\\"] {
            assert_eq!(words(text), [("a".to_owned(), 1)], "{text}");
        }
    }
}
