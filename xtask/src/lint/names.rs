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
    let mut found = Vec::new();
    for file in files.iter().filter(|file| file.is_rust()) {
        for pair in tokens(&file.text).windows(2) {
            if let [(Token::Word(keyword), _), (Token::Word(name), line)] = pair
                && DEFINE.contains(&keyword.as_str())
                && let Some(word) = words(name)
                    .iter()
                    .find(|word| BANNED.contains(&word.as_str()))
            {
                let complaint = format!("the field has a better word than \"{word}\" for it");
                found.push(format!("{}:{line}: `{name}`: {complaint}", file.path));
            }
        }
    }
    found
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

    #[test]
    fn a_type_or_module_with_a_banned_word_is_named_with_its_line() {
        let text = "// struct Way\nmod in_place;\npub struct HeldClient;\n";
        let found = check(&[File::new("a.rs", text)]);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].starts_with("a.rs:2: `in_place`"), "{found:?}");
        assert!(found[1].starts_with("a.rs:3: `HeldClient`"), "{found:?}");
    }

    #[test]
    fn parts_of_words_and_names_of_functions_and_variables_are_allowed() {
        let text =
            "mod replace; struct Pathway; fn place() { let way = room; } type Placement = u8;";
        assert_eq!(check(&[File::new("a.rs", text)]), [""; 0]);
    }
}
