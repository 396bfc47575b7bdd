// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Rejects names of types and modules that contain vague words. Called by `lint`.

use super::{
    File,
    tokens::{Token, tokens},
};

/// Words that no name of a type or module may contain.
const BANNED: [&str; 10] = [
    "way", "place", "room", "held", "beside", "leave", "standing", "told", "thing", "whole",
];

/// The keywords before the name of a type or module.
const DEFINE: [&str; 5] = ["struct", "enum", "trait", "type", "mod"];

/// Returns a line for each name that contains a word of `BANNED`.
pub(super) fn check(files: &[File]) -> Vec<String> {
    let rust = files.iter().filter(|file| file.is_rust());
    rust.flat_map(|file| {
        let names = defined(&file.text);
        let banned = names.into_iter().filter_map(|(name, line)| {
            let word = words(&name)
                .into_iter()
                .find(|word| BANNED.contains(&word.as_str()))?;
            Some(format!(
                "{}:{line}: `{name}`: the field has a better word than \"{word}\" for it",
                file.path
            ))
        });
        banned.collect::<Vec<_>>()
    })
    .collect()
}

/// Returns the names of types and modules in a Rust source, each with its line number.
fn defined(text: &str) -> Vec<(String, usize)> {
    let tokens = tokens(text);
    let pairs = tokens.windows(2).filter_map(|pair| match pair {
        [(Token::Word(keyword), _), (Token::Word(name), line)] => DEFINE
            .contains(&keyword.as_str())
            .then(|| (name.clone(), *line)),
        _ => None,
    });
    pairs.collect()
}

/// Returns the words of a name such as `NodeCondition` or `node_condition`, in lower case.
fn words(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    for c in name.chars() {
        if c == '_' || c.is_uppercase() {
            words.push(String::new());
        }
        if c != '_'
            && let Some(word) = words.last_mut()
        {
            word.extend(c.to_lowercase());
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> File {
        File {
            path: "a.rs".to_owned(),
            text: text.to_owned(),
        }
    }

    #[test]
    fn a_type_or_module_with_a_banned_word_is_named_with_its_line() {
        let text = "// struct Way\nmod in_place;\npub struct HeldClient;\n";
        let found = check(&[file(text)]);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].starts_with("a.rs:2: `in_place`"), "{found:?}");
        assert!(found[1].starts_with("a.rs:3: `HeldClient`"), "{found:?}");
    }

    #[test]
    fn a_word_within_another_and_other_names_are_not_meant() {
        let text =
            "mod replace; struct Pathway; fn place() { let way = room; } type Placement = u8;";
        assert_eq!(check(&[file(text)]), [""; 0]);
    }
}
