// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Describes an entry of the settings' table, and converts its value into a `Config` and back. Used
//! by `table`, `raw`, `file`, the command line's flags and the page docs/settings.md.

use std::net::SocketAddr;

use clap::builder::PossibleValue;
use serde::Serialize;

use super::{
    Config, ConfigError,
    raw::Draft,
    values::{self, Problem, Seconds},
};

/// Settings of one subject: a chapter of docs/settings.md and a heading in `portolan run --help`.
pub struct Group {
    pub title: &'static str,
    /// The facts that apply to all settings of the group.
    pub about: String,
    pub settings: Vec<Setting>,
}

/// One setting, with everything that the file, the flags, `--write-config-to` and docs/settings.md
/// need.
///
/// The texts (`unset`, `what`) are Markdown for operators.
pub struct Setting {
    /// The setting's path in the file, with dots: `conntrack.min`.
    pub key: &'static str,
    /// The flag of `portolan run`, without its dashes: kube-proxy's name if kube-proxy has the
    /// flag. A flag that two settings name sets both.
    pub flag: Option<&'static str>,
    /// Whether the agent adopts changes while it runs.
    pub at_once: bool,
    pub kind: Kind,
    /// Of a [`Kind::Special`]: what stands for the value in `--help`, and the allowed values.
    pub value: (&'static str, &'static str),
    /// The default as a text for people, if the default value does not explain itself.
    pub unset: Option<String>,
    /// What the setting does, and when an operator should change it.
    pub what: String,
}

/// Returns the field of the configuration that stores a setting.
type Field<T> = fn(&mut Config) -> &mut T;

/// The values that a setting may have, and the field that stores them.
#[derive(Clone, Copy)]
pub enum Kind {
    Bool(Field<bool>),
    /// One of a few fixed words.
    Choice(fn(&mut Config) -> &mut dyn Choice),
    /// A duration in Go's notation.
    Seconds(fn(&mut Config) -> Seconds<'_>),
    /// The number of entries that a map can have.
    Entries(Field<u32>),
    /// An IP address and a port.
    Address(Field<SocketAddr>),
    /// Name patterns with `*` and `?`.
    Patterns(Field<Vec<String>>),
    /// A number of connections in nf_conntrack; `0` means what the text says, if there is one.
    Connections(Field<u32>, &'static str),
    /// A setting that none of the other kinds fits: how its value is read, and the value to write
    /// to a file; None if the file should not name the setting.
    Special(Read, fn(&Config) -> Option<Value>),
}

/// The function that reads the value of a [`Kind::Special`] setting.
#[derive(Clone, Copy)]
pub enum Read {
    Bool(fn(&mut Draft, bool)),
    /// Any number.
    Number(fn(&mut Draft, i64)),
    /// Any text.
    Any(fn(&mut Draft, &str)),
    Text(fn(&mut Draft, &str) -> Result<(), Problem>),
    List(fn(&mut Draft, &[String]) -> Result<(), Problem>),
}

/// The form of a value in the file and in a flag.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shape {
    Bool,
    Number,
    Text,
    List,
}

/// A value as the file or a flag gives it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(untagged)]
pub enum Value {
    Bool(bool),
    Number(i64),
    Text(String),
    List(Vec<String>),
}

/// A field whose value is one of a few fixed words. Every `clap::ValueEnum` is one.
pub trait Choice {
    fn words(&self) -> Vec<PossibleValue>;
    fn word(&self) -> String;
    /// Sets the field to the value that this word names; false if there is no such word.
    fn choose(&mut self, word: &str) -> bool;
}

impl<T: clap::ValueEnum> Choice for T {
    fn words(&self) -> Vec<PossibleValue> {
        let values = T::value_variants().iter();
        values.filter_map(T::to_possible_value).collect()
    }
    fn word(&self) -> String {
        let value = self.to_possible_value();
        value.map_or_else(String::new, |value| value.get_name().to_owned())
    }
    fn choose(&mut self, word: &str) -> bool {
        let chosen = T::from_str(word, false);
        chosen.is_ok_and(|value| {
            *self = value;
            true
        })
    }
}

impl Setting {
    /// Checks a value and stores it in the draft.
    pub fn read(&self, draft: &mut Draft, value: &Value) -> Result<(), ConfigError> {
        let read = self.try_read(draft, value);
        read.map_err(|problem| problem.with_key(self.key))
    }

    fn try_read(&self, draft: &mut Draft, value: &Value) -> Result<(), Problem> {
        let config = &mut draft.config;
        match (self.kind, value) {
            (Kind::Bool(field), Value::Bool(on)) => *field(config) = *on,
            (Kind::Choice(field), Value::Text(word)) => {
                if !field(config).choose(word) {
                    let words = self.kind.words_joined("");
                    return Err(Problem::new(word, format!("is unknown; use {words}")));
                }
            }
            (Kind::Seconds(field), Value::Text(text)) => values::seconds(text, field(config))?,
            (Kind::Entries(field), Value::Number(entries)) => {
                *field(config) = values::entries(*entries)?;
            }
            (Kind::Connections(field, _), Value::Number(number)) => {
                *field(config) = values::connections(*number)?;
            }
            (Kind::Address(field), Value::Text(text)) => values::address(text, field(config))?,
            (Kind::Patterns(field), Value::List(patterns)) => {
                if patterns.iter().any(String::is_empty) {
                    return Err(Problem::new("", "matches nothing; remove it"));
                }
                field(config).clone_from(patterns);
            }
            (Kind::Special(Read::Bool(read), _), Value::Bool(on)) => read(draft, *on),
            (Kind::Special(Read::Number(read), _), Value::Number(number)) => read(draft, *number),
            (Kind::Special(Read::Any(read), _), Value::Text(text)) => read(draft, text),
            (Kind::Special(Read::Text(read), _), Value::Text(text)) => read(draft, text)?,
            (Kind::Special(Read::List(read), _), Value::List(items)) => read(draft, items)?,
            _ => return Err(Problem::new(value, format!("is not: {}", self.values()))),
        }
        Ok(())
    }

    /// Returns the value to write to a file; None if the file should not name the setting.
    pub fn write(&self, config: &Config) -> Option<Value> {
        // The accessors of fields need a mutable configuration.
        let mut copy = config.clone();
        Some(match self.kind {
            Kind::Bool(field) => Value::Bool(*field(&mut copy)),
            Kind::Choice(field) => Value::Text(field(&mut copy).word()),
            Kind::Seconds(field) => {
                let seconds = field(&mut copy).conntrack.unwrap_or_default();
                Value::Text(values::go_duration(seconds))
            }
            Kind::Entries(field) => match *field(&mut copy) {
                0 => return None,
                entries => Value::Number(entries.into()),
            },
            Kind::Connections(field, _) => Value::Number((*field(&mut copy)).into()),
            Kind::Address(field) => Value::Text(field(&mut copy).to_string()),
            Kind::Patterns(field) => Value::List(field(&mut copy).clone()),
            Kind::Special(_, write) => return write(config),
        })
    }

    /// Returns the default as an operator would write it, or as a text for people.
    pub fn default(&self) -> String {
        let written = || self.write(&Config::default());
        match (&self.unset, written()) {
            (Some(words), _) => words.clone(),
            (None, Some(value)) => value.to_string(),
            (None, None) => "not set".to_owned(),
        }
    }

    /// Returns the allowed values as a text for docs/settings.md.
    pub fn values(&self) -> String {
        match self.kind {
            Kind::Bool(_) => "`true` or `false`".to_owned(),
            Kind::Choice(_) => self.kind.words_joined("`"),
            Kind::Seconds(_) => {
                "duration, like `24h0m0s` or `90s`; `0s` for the default".to_owned()
            }
            Kind::Entries(_) => {
                let [least, most] = values::ENTRIES;
                format!("number of entries, {least} to {most}")
            }
            Kind::Connections(_, zero) => format!("number of connections{zero}"),
            Kind::Address(_) => "IP address, with a port or without".to_owned(),
            Kind::Patterns(_) => "list of patterns; `*` matches any characters, `?` one".to_owned(),
            Kind::Special(..) => self.value.1.to_owned(),
        }
    }

    /// Returns what stands for the value in `--help`, such as `DURATION`.
    pub fn placeholder(&self) -> &'static str {
        match self.kind {
            Kind::Bool(_) => "BOOL",
            Kind::Choice(_) => "WORD",
            Kind::Seconds(_) => "DURATION",
            Kind::Entries(_) => "ENTRIES",
            Kind::Connections(..) => "NUMBER",
            Kind::Address(_) => "ADDRESS",
            Kind::Patterns(_) => "PATTERNS",
            Kind::Special(..) => self.value.0,
        }
    }
}

impl Kind {
    pub fn shape(&self) -> Shape {
        match self {
            Self::Bool(_) | Self::Special(Read::Bool(_), _) => Shape::Bool,
            Self::Entries(_) | Self::Connections(..) | Self::Special(Read::Number(_), _) => {
                Shape::Number
            }
            Self::Choice(_) | Self::Seconds(_) | Self::Address(_) => Shape::Text,
            Self::Special(Read::Any(_) | Read::Text(_), _) => Shape::Text,
            Self::Patterns(_) | Self::Special(Read::List(_), _) => Shape::List,
        }
    }

    /// Returns the fixed words of a [`Kind::Choice`]; other kinds have none.
    pub fn words(&self) -> Vec<PossibleValue> {
        match self {
            Self::Choice(field) => field(&mut Config::default()).words(),
            _ => Vec::new(),
        }
    }

    /// Returns the fixed words of a [`Kind::Choice`], each between two `mark`s, joined by "or".
    fn words_joined(&self, mark: &str) -> String {
        let words = self.words();
        let names = words.iter().map(PossibleValue::get_name);
        let quoted = names.map(|name| format!("{mark}{name}{mark}"));
        quoted.collect::<Vec<_>>().join(" or ")
    }
}

impl Value {
    pub fn list<T: ToString>(items: &[T]) -> Self {
        Self::List(items.iter().map(ToString::to_string).collect())
    }
}

impl std::fmt::Display for Value {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Bool(on) => write!(f, "{on}"),
            Self::Number(number) => write!(f, "{number}"),
            Self::Text(text) => f.write_str(text),
            Self::List(items) => write!(f, "[{}]", items.join(", ")),
        }
    }
}
