// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Decides which references are paths of the repository, and whether these exist.

use std::collections::BTreeSet;

use super::mentions::{Kind, Mention};

/// A name with one of these extensions is taken for a file, even without a folder.
const EXTENSIONS: [&str; 11] = [
    "rs", "md", "toml", "yaml", "yml", "json", "conf", "svg", "lock", "mod", "sum",
];

/// The paths of every file of the clone and of every folder that contains a file.
pub(super) struct Tree {
    entries: BTreeSet<String>,
}

/// The result of searching for a path in the clone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Found {
    Yes,
    No,
    /// The path is only the end of several paths, e.g. a file's name that is in several folders.
    Ambiguous,
}

impl Tree {
    pub(super) fn new<'a>(files: impl IntoIterator<Item = &'a str>) -> Self {
        let mut entries = BTreeSet::new();
        for file in files {
            let ends = file.match_indices('/').map(|(end, _)| end);
            entries.extend(ends.map(|end| file[..end].to_owned()));
            entries.insert(file.to_owned());
        }
        Self { entries }
    }

    /// Returns the paths that a reference means: several with braces; no path for other texts.
    pub(super) fn paths_of(&self, mention: &Mention) -> Vec<String> {
        let text = match mention.kind {
            Kind::Link => mention.text.split('#').next().unwrap_or_default(),
            Kind::Code | Kind::Word => without_line(&mention.text),
        };
        let paths = expand(text);
        let all_are = paths.iter().all(|path| match mention.kind {
            Kind::Link => !path.is_empty() && !path.contains(':'),
            Kind::Code => self.is_path(path),
            // A plain word with dots or slashes need not be a path.
            Kind::Word => is_plain(path) && self.is_in_top_folder(path),
        });
        if all_are { paths } else { Vec::new() }
    }

    fn is_path(&self, text: &str) -> bool {
        is_plain(text) && (has_extension(text) || text.contains('/') && self.has_folder(text))
    }

    /// Returns true if the path's first folder has the name of any folder in the clone.
    fn has_folder(&self, path: &str) -> bool {
        let Some((folder, _)) = path.split_once('/') else {
            return false;
        };
        let inner = format!("/{folder}/");
        let is_it = |entry: &String| {
            entry.contains(&inner) || entry.split('/').next() == Some(folder) && entry != folder
        };
        self.entries.iter().any(is_it)
    }

    fn is_in_top_folder(&self, path: &str) -> bool {
        path.split_once('/')
            .is_some_and(|(folder, _)| self.entries.contains(folder))
    }

    /// Searches for a path in each folder of `bases`, which are relative to the root of the clone;
    /// then, if `anywhere`, for paths of the clone that end with it.
    pub(super) fn find(&self, path: &str, bases: &[String], anywhere: bool) -> Found {
        let is_there = |base: &String| join(base, path).is_some_and(|path| self.contains(&path));
        if bases.iter().any(is_there) {
            return Found::Yes;
        }
        let end = format!("/{}", path.trim_end_matches('/'));
        let ends = self.entries.iter().filter(|entry| entry.ends_with(&end));
        match if anywhere { ends.count() } else { 0 } {
            0 => Found::No,
            1 => Found::Yes,
            _ => Found::Ambiguous,
        }
    }

    pub(super) fn contains(&self, path: &str) -> bool {
        path.is_empty() || self.entries.contains(path)
    }

    /// Returns the path in the clone of the folder or file `text`, relative to `from` or to the
    /// root; None if it does not exist.
    pub(super) fn folder(&self, text: &str, from: &str) -> Option<String> {
        [from, ""]
            .into_iter()
            .filter_map(|base| join(base, text))
            .find(|path| !path.is_empty() && self.entries.contains(path))
    }
}

/// Returns true if the text can be a path, and is no placeholder, host or option.
fn is_plain(text: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "._-/".contains(c);
    !text.is_empty()
        && text.chars().all(allowed)
        && !text.starts_with(['/', '-'])
        && !text.contains("...")
        && !text.split('/').any(is_placeholder)
}

/// Returns true if a path's segment is a placeholder such as `DIR`, `NAME.yaml` or
/// `portolan-VERSION.tar`; `README.md` and `LICENSE-MIT` are names.
fn is_placeholder(segment: &str) -> bool {
    let is_capital = |word: &str| word.len() > 1 && word.chars().all(|c| c.is_ascii_uppercase());
    !segment.ends_with(".md")
        && !segment.starts_with("LICENSE")
        && segment.split(['.', '-', '_']).any(is_capital)
}

fn has_extension(text: &str) -> bool {
    let name = text.rsplit('/').next().unwrap_or(text);
    name.rsplit_once('.')
        .is_some_and(|(stem, extension)| !stem.is_empty() && EXTENSIONS.contains(&extension))
}

/// Removes the line number from the end of a path such as `README.md:22`.
fn without_line(text: &str) -> &str {
    match text.rsplit_once(':') {
        Some((path, line)) if line.starts_with(|c: char| c.is_ascii_digit()) => path,
        _ => text,
    }
}

/// Returns the paths that a text with braces means: two for `proxy-{common,user}/src`.
fn expand(text: &str) -> Vec<String> {
    let Some((start, end)) = text.find('{').zip(text.find('}')).filter(|(a, b)| a < b) else {
        return vec![text.to_owned()];
    };
    text[start + 1..end]
        .split(',')
        .map(|choice| format!("{}{}{}", &text[..start], choice.trim(), &text[end + 1..]))
        .collect()
}

/// Returns `path` below `base`, with `.` and `..` resolved; None if it leaves the clone.
fn join(base: &str, path: &str) -> Option<String> {
    let mut whole: Vec<&str> = base.split('/').filter(|part| !part.is_empty()).collect();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => _ = whole.pop()?,
            _ => whole.push(part),
        }
    }
    Some(whole.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree() -> Tree {
        Tree::new([
            "README.md",
            "Cargo.toml",
            ".ci/run",
            "deploy/overlays/k3s/config.conf",
            "deploy/overlays/bare/config.conf",
            "proxy-user/src/agent/mod.rs",
            "proxy-user/src/main.rs",
            "proxy-user/tests/support/agent.rs",
        ])
    }

    fn paths(kind: Kind, text: &str) -> Vec<String> {
        tree().paths_of(&Mention {
            text: text.to_owned(),
            kind,
            line: 1,
            subject: String::new(),
        })
    }

    #[test]
    fn paths_in_backticks_are_recognised() {
        let texts =
            "README.md proxy-user/src proxy-user/src/gone.rs overlays/k3s deploy/ .ci/run gone.rs";
        for text in texts.split(' ') {
            assert_eq!(paths(Kind::Code, text), [text], "{text}");
        }
        assert_eq!(paths(Kind::Code, "gone.rs:22"), ["gone.rs"]);
        assert_eq!(
            paths(Kind::Code, "proxy-user/{src,tests}/a.rs"),
            ["proxy-user/src/a.rs", "proxy-user/tests/a.rs"]
        );
    }

    #[test]
    fn other_texts_in_backticks_are_no_paths() {
        for text in [
            "cargo xtask lint",
            "/sys/fs/bpf",
            "~/.cache/portolan",
            "--output",
            "DIR",
            "deploy/overlays/NAME",
            "deploy/*/config.conf",
            "https://aya-rs.dev/x.md",
            "apps/v1",
            "daemonset/portolan",
            "net.ipv4.ip_forward=1",
            "target/image/portolan-VERSION.tar",
            "a::b",
            ".rs",
            "1.2",
        ] {
            assert_eq!(paths(Kind::Code, text), [""; 0], "{text}");
        }
    }

    #[test]
    fn links_and_plain_words_have_rules_of_their_own() {
        assert_eq!(paths(Kind::Link, "docs/gone.md#words"), ["docs/gone.md"]);
        for text in ["#words", "https://aya-rs.dev"] {
            assert_eq!(paths(Kind::Link, text), [""; 0], "{text}");
        }
        assert_eq!(paths(Kind::Word, "deploy/gone.yaml"), ["deploy/gone.yaml"]);
        for text in ["gone.rs", "and/or.md", "deploy"] {
            assert_eq!(paths(Kind::Word, text), [""; 0], "{text}");
        }
    }

    #[test]
    fn a_path_is_looked_for_below_its_bases_and_then_anywhere() {
        for (path, base, anywhere, expected) in [
            ("proxy-user/src", "", false, Found::Yes),
            ("proxy-user/src/", "", false, Found::Yes),
            ("src/main.rs", "proxy-user", false, Found::Yes),
            ("../README.md", "deploy", false, Found::Yes),
            ("../../README.md", "deploy", false, Found::No),
            ("agent.rs", "proxy-user/src", false, Found::No),
            ("agent.rs", "proxy-user/src", true, Found::Yes),
            ("config.conf", "deploy", true, Found::Ambiguous),
            ("config.conf", "deploy/overlays/k3s", true, Found::Yes),
            ("gone.rs", "", true, Found::No),
        ] {
            let found = tree().find(path, &[base.to_owned()], anywhere);
            assert_eq!(found, expected, "{path} in {base}");
        }
    }
}
