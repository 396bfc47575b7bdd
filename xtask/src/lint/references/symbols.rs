// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Checks whether Rust names with several parts (module and item, type and method) are defined in
//! the sources. Used by `references`.

use std::collections::HashSet;

use crate::lint::tokens::{Token, tokens};

/// Keywords that are followed by the name that they define.
const DEFINERS: &str = "fn struct enum union const static mod trait type macro_rules";

/// All names that the sources define: modules, items, methods, variants and fields.
#[derive(Default)]
pub(super) struct Definitions {
    names: HashSet<String>,
}

impl Definitions {
    /// Adds the names in a Rust source, and the names of its file and folders, which are modules.
    pub(super) fn read(&mut self, path: &str, text: &str) {
        let modules = path.trim_end_matches(".rs").split('/');
        self.names
            .extend(modules.map(|name| name.replace('-', "_")));
        let tokens: Vec<_> = tokens(text).into_iter().map(|(token, _)| token).collect();
        for (at, token) in tokens.iter().enumerate() {
            let Token::Word(word) = token else {
                continue;
            };
            if DEFINERS.split(' ').all(|definer| definer != word) {
                continue;
            }
            let rest = &tokens[at + 1..];
            // In `const fn`, `static mut` and `macro_rules!`, something precedes the name.
            let name = rest.iter().find_map(|token| match token {
                Token::Word(word) if !["fn", "mut", "unsafe"].contains(&word.as_str()) => {
                    Some(word.clone())
                }
                _ => None,
            });
            self.names.extend(name);
            if ["enum", "struct"].contains(&word.as_str()) {
                self.names.extend(members(rest));
            }
        }
    }

    /// Returns the first part of a name that no source defines; None if all parts are defined.
    pub(super) fn missing<'a>(&self, name: &[&'a str]) -> Option<&'a str> {
        let is_missing = |part: &&str| {
            !["crate", "self", "super", "Self"].contains(part) && !self.names.contains(*part)
        };
        name.iter().copied().find(|part| is_missing(part))
    }
}

/// Returns the parts of a name such as `Kubectl::parse()`; `None` if the text is not such a name.
pub(super) fn parts(text: &str) -> Option<Vec<&str>> {
    let text = text.split(['(', '<', '!']).next()?.trim_end_matches("::*");
    let parts: Vec<_> = text.split("::").collect();
    let is_name = |part: &&str| {
        part.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && part.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    (parts.len() > 1 && parts.iter().all(is_name)).then_some(parts)
}

/// Returns the variants or fields of an enum or struct; `tokens` begin after the keyword.
fn members(tokens: &[Token]) -> Vec<String> {
    let mut found = Vec::new();
    let mut depth = 0;
    let mut starts = false;
    for (at, token) in tokens.iter().enumerate() {
        match token {
            Token::Other(';') if depth == 0 => break,
            Token::Other(symbol @ ('{' | '(' | '[')) => {
                depth += 1;
                starts |= depth == 1 && *symbol == '{';
            }
            Token::Other('}' | ')' | ']') => {
                depth -= 1;
                if depth == 0 {
                    break;
                }
            }
            Token::Other(',') if depth == 1 => starts = true,
            Token::Word(word) if depth == 1 => {
                // A word before `:` is a field; `pub` may precede it.
                if starts || tokens.get(at + 1) == Some(&Token::Other(':')) {
                    found.push(word.clone());
                }
                starts = false;
            }
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_two_or_more_parts_are_recognised() {
        for (text, expected) in [
            ("a::b", Some(vec!["a", "b"])),
            ("Type::name()", Some(vec!["Type", "name"])),
            ("crate::A<B>", Some(vec!["crate", "A"])),
            ("name", None),
            ("::", None),
            ("a:b", None),
            ("fe80::1", None),
            ("fd00::a b", None),
        ] {
            assert_eq!(parts(text), expected, "{text}");
        }
    }

    #[test]
    fn a_definition_of_any_kind_is_found() {
        let mut definitions = Definitions::default();
        let text = "pub(crate) const fn new() {} struct Plan; struct Flow { pub(crate) state: u8, age: u8 } static mut COUNT: u8 = 0; macro_rules! plain {} \
            enum Counter<T> { #[doc = \"x\"] Hit, Miss(Inner), Full { size: u8 } , Last = 3 } type Words = u8;";
        definitions.read("proxy-user/src/agent/mod.rs", text);
        let names = "proxy_user::agent::new Plan COUNT plain Counter::Hit Counter::Miss Counter::Full \
            Counter::Last crate::Words Flow::state Flow::age";
        for name in names.split(' ') {
            let parts: Vec<_> = name.split("::").collect();
            assert_eq!(definitions.missing(&parts), None, "{name}");
        }
        for (name, missing) in [
            ("agent::gone", "gone"),
            ("Counter::Inner", "Inner"),
            ("Counter::size", "size"),
            ("gone::Plan", "gone"),
        ] {
            let parts: Vec<_> = name.split("::").collect();
            assert_eq!(definitions.missing(&parts), Some(missing), "{name}");
        }
    }
}
