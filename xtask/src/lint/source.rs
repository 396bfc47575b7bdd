// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads the paths that a Rust source names, well enough to see which crates and modules it uses. Used by
//! `direction`.

use super::tokens::{Token, tokens};

/// A path as written, with the line it stands in.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct NamedPath {
    pub(super) segments: Vec<String>,
    /// Inline modules around it, outermost first: `super` in them leads out of them first.
    pub(super) inside: Vec<String>,
    pub(super) line: usize,
}

/// Every path of a `use` (groups taken apart) and every other path of two or more segments.
pub(super) fn paths(text: &str) -> Vec<NamedPath> {
    let tokens = tokens(text);
    let mut reader = Reader {
        tokens: &tokens,
        at: 0,
        modules: Vec::new(),
        depth: 0,
        found: Vec::new(),
    };
    reader.read();
    reader.found
}

struct Reader<'a> {
    tokens: &'a [(Token, usize)],
    at: usize,
    /// Inline modules that are open, with the depth of braces outside each.
    modules: Vec<(String, usize)>,
    depth: usize,
    found: Vec<NamedPath>,
}

impl Reader<'_> {
    fn peek(&self, ahead: usize) -> Option<&Token> {
        self.tokens.get(self.at + ahead).map(|(token, _)| token)
    }

    fn word(&self, ahead: usize) -> Option<&str> {
        match self.peek(ahead) {
            Some(Token::Word(word)) => Some(word),
            _ => None,
        }
    }

    fn read(&mut self) {
        let mut after_dot = false;
        while let Some((token, line)) = self.tokens.get(self.at) {
            let line = *line;
            let was_after_dot = std::mem::replace(&mut after_dot, *token == Token::Other('.'));
            match token {
                Token::Word(word) if word == "use" => {
                    self.at += 1;
                    self.use_tree(Vec::new());
                }
                Token::Word(word) if word == "mod" && self.peek(2) == Some(&Token::Other('{')) => {
                    let name = self.word(1).unwrap_or_default().to_owned();
                    self.modules.push((name, self.depth));
                    self.at += 2;
                }
                Token::Word(_) => {
                    let segments = self.segments();
                    if segments.len() > 1 && !was_after_dot {
                        self.push(segments, line);
                    }
                }
                Token::Separator => {
                    // `::aya::x` is a path as well; `>::x` goes on from a type.
                    self.at += 1;
                    if !self.follows_a_path() {
                        continue;
                    }
                    self.segments();
                }
                Token::Other(symbol) => {
                    self.brace(*symbol);
                    self.at += 1;
                }
            }
        }
    }

    /// Whether the separator just passed goes on from `>`, as in `<T as Trait>::name`.
    fn follows_a_path(&self) -> bool {
        let is = |back: usize, symbol| {
            self.at
                .checked_sub(back)
                .is_some_and(|at| self.tokens[at].0 == Token::Other(symbol))
        };
        is(2, '>') && !is(3, '-') && !is(3, '=')
    }

    fn brace(&mut self, symbol: char) {
        match symbol {
            '{' => self.depth += 1,
            '}' => {
                self.depth = self.depth.saturating_sub(1);
                if self
                    .modules
                    .last()
                    .is_some_and(|(_, depth)| *depth == self.depth)
                {
                    self.modules.pop();
                }
            }
            _ => {}
        }
    }

    /// The segments of the path that begins here.
    fn segments(&mut self) -> Vec<String> {
        let mut segments = Vec::new();
        while let Some(word) = self.word(0) {
            segments.push(word.to_owned());
            self.at += 1;
            if self.peek(0) != Some(&Token::Separator) || self.word(1).is_none() {
                break;
            }
            self.at += 1;
        }
        segments
    }

    /// What follows `use`: `a::{b, c::*} ;`.
    fn use_tree(&mut self, prefix: Vec<String>) {
        let line = self.tokens.get(self.at).map_or(0, |(_, line)| *line);
        if self.peek(0) == Some(&Token::Separator) {
            self.at += 1;
        }
        let mut path = prefix;
        path.extend(self.segments());
        if self.peek(0) == Some(&Token::Separator) {
            self.at += 1;
        }
        if self.peek(0) == Some(&Token::Other('{')) {
            self.at += 1;
            while let Some(token) = self.peek(0) {
                match token {
                    Token::Other('}') => {
                        self.at += 1;
                        break;
                    }
                    Token::Other(_) => self.at += 1,
                    _ => self.use_tree(path.clone()),
                }
            }
        } else {
            if self.peek(0) == Some(&Token::Other('*')) {
                self.at += 1;
            }
            if self.word(0) == Some("as") {
                self.at += 2;
            }
            if !path.is_empty() {
                self.push(path, line);
            }
        }
    }

    fn push(&mut self, segments: Vec<String>, line: usize) {
        let inside = self.modules.iter().map(|(name, _)| name.clone()).collect();
        self.found.push(NamedPath {
            segments,
            inside,
            line,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(text: &str) -> Vec<String> {
        paths(text)
            .into_iter()
            .map(|path| path.segments.join("::"))
            .collect()
    }

    #[test]
    fn groups_of_a_use_are_taken_apart() {
        let text = "use a::{b, c::{d, self}, e as f}; pub(crate) use g::*; use h;";
        assert_eq!(
            named(text),
            ["a::b", "a::c::d", "a::c::self", "a::e", "g", "h"]
        );
    }

    #[test]
    fn paths_in_code_and_attributes_are_seen() {
        let text = "#[tokio::main] fn f(x: aya::Ebpf) -> ::k8s_openapi::Metadata { kube::run(x.y::<u8>()) }";
        assert_eq!(
            named(text),
            [
                "tokio::main",
                "aya::Ebpf",
                "k8s_openapi::Metadata",
                "kube::run"
            ]
        );
    }

    #[test]
    fn comments_texts_and_lifetimes_name_nothing() {
        let text = "// a::b\n/* c::d /* e::f */ g::h */ \"i::j\\\"\" r#\"k::l\"# 'm': '\\'' fn<'n>() { o::p }";
        assert_eq!(named(text), ["o::p"]);
    }

    #[test]
    fn a_path_knows_its_line_and_the_inline_modules_around_it() {
        let found = paths(
            "use a::b;\nmod tests {\n  use super::c;\n  mod deep { fn x() { super::d::e() } }\n}\nuse f::g;",
        );
        let about: Vec<_> = found
            .iter()
            .map(|path| (path.line, path.inside.join("::")))
            .collect();
        assert_eq!(
            about,
            [
                (1, String::new()),
                (3, "tests".to_owned()),
                (4, "tests::deep".to_owned()),
                (6, String::new())
            ]
        );
    }
}
