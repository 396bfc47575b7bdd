// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sequences as text, one operation a line, and the files in which they are stored. Behind ` = `, a
//! line has a second operation, about the outcome of the first.

use std::{
    fmt, fs,
    path::{Path, PathBuf},
    str::FromStr,
};

use clap::ValueEnum;

/// A list of operations, which a run executes in this order.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct Sequence<T>(pub(crate) Vec<T>);

impl<T: fmt::Display> fmt::Display for Sequence<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut operations = self.0.iter();
        operations.try_for_each(|operation| writeln!(f, "{operation}"))
    }
}

impl<T: FromStr<Err = String>> FromStr for Sequence<T> {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let lines = text.lines().map(str::trim);
        let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
        let parts = lines.flat_map(|line| {
            let at = line.find(" = ").unwrap_or(line.len());
            let (operation, outcome) = line.split_at(at);
            [operation, outcome.trim()].map(str::trim_end)
        });
        let parts = parts.filter(|part| !part.is_empty());
        let operations = parts.map(|part| part.parse().map_err(|fault| format!("{part}: {fault}")));
        Ok(Self(operations.collect::<Result<_, _>>()?))
    }
}

/// Returns the word for a value.
pub(crate) fn word(value: impl ValueEnum) -> String {
    let value = value.to_possible_value();
    value.map_or_else(String::new, |value| value.get_name().to_owned())
}

/// Parses one word of an operation's text.
pub(crate) fn parsed<T: FromStr>(text: &str) -> Result<T, String> {
    text.parse()
        .map_err(|_ignored| format!("cannot read {text}"))
}

/// Returns all sequences stored in a folder of this package, in the order of the file names.
pub(crate) fn sequences<T: FromStr<Err = String>>(folder: &str) -> Vec<(PathBuf, Sequence<T>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let files = fs::read_dir(&folder).expect("the folder of kept sequences");
    let mut paths: Vec<_> = files.map(|file| file.expect("a file").path()).collect();
    paths.sort();
    let read = |path: PathBuf| {
        let text = fs::read_to_string(&path).expect("a text");
        let sequence = text.parse();
        let sequence = sequence.unwrap_or_else(|fault| panic!("{}: {fault}", path.display()));
        (path, sequence)
    };
    paths.into_iter().map(read).collect()
}
