// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The configuration file: kube-proxy's `KubeProxyConfiguration` of v1alpha1, with portolan's own
//! settings in its section `portolan`. The entries of `table` drive both directions: reading a file
//! into a `RawConfig` and writing a `Config` to a file.

use std::{collections::BTreeSet, path::Path};

use anyhow::Context;
use control::{
    documents::{Document, describe, first, is_blank},
    object::Warning,
};
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, Visitor};
use serde_json::Value as Json;
use serde_saphyr::Spanned;

use super::{
    Config, ConfigError, RawConfig,
    raw::Draft,
    setting::{Kind, Setting, Shape, Value},
    table::{self, Entry},
};

impl RawConfig {
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let shown = path.display().to_string();
        let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Unreadable {
            path: shown.clone(),
            source,
        })?;
        Self::parse(&shown, &text)
    }

    /// Reads the text of a configuration file; errors name the path. KUBE: of several YAML
    /// documents the first one counts. A file without apiVersion and kind is refused, because an
    /// empty file would set every default.
    pub(crate) fn parse(path: &str, text: &str) -> Result<Self, ConfigError> {
        let (raw, header) = settings(path, text)?;
        let all = table::HEADER.iter();
        let missing = all.filter(|(key, _)| !header.contains(key));
        let lines = missing.map(|(key, value)| format!("{key}: {value}"));
        let lines = lines.collect::<Vec<_>>().join(", ");
        if lines.is_empty() {
            return Ok(raw);
        }
        Err(ConfigError::Malformed {
            path: path.to_owned(),
            line: 1,
            reason: format!("this is missing, without which no settings are read: {lines}"),
        })
    }

    /// Reads settings from a text that needs no header (apiVersion and kind).
    #[doc(hidden)]
    pub fn parse_part(path: &str, text: &str) -> Result<Self, ConfigError> {
        settings(path, text).map(|(raw, _)| raw)
    }
}

/// Returns the settings in the text of a file, and which of the keys apiVersion and kind it has.
fn settings(path: &str, text: &str) -> Result<(RawConfig, BTreeSet<&'static str>), ConfigError> {
    let Document { first_line, text } = first(text);
    let mut contents = Contents {
        first_line,
        ..Contents::default()
    };
    // KUBE: of two equal keys, the last one counts.
    let options = serde_saphyr::options! {
        with_snippet: false,
        duplicate_keys: serde_saphyr::DuplicateKeyPolicy::LastWins,
        // A word like `off` is a text where a text is expected.
        strict_booleans: true,
    };
    if !is_blank(text) {
        let read = serde_saphyr::with_deserializer_from_str_with_options(text, options, |file| {
            let file_itself = Section {
                path: "",
                file: path,
                contents: &mut contents,
            };
            file_itself.deserialize(file)
        });
        read.map_err(|error| {
            let (line, reason) = contents.fault.take().unwrap_or_else(|| {
                let line = error.location().map_or(1, |location| location.line());
                (contents.line(line), describe(&error, text))
            });
            let path = path.to_owned();
            ConfigError::Malformed { path, line, reason }
        })?;
    }
    let mut raw = contents.raw;
    // The unused keys are listed in the table's order.
    let unused_keys = table::unused().flat_map(|unused| &unused.keys);
    for key in unused_keys.filter(|key| contents.unused.contains(*key)) {
        raw.add_unused((*key).to_owned());
    }
    Ok((raw, contents.header))
}

/// What has been read so far of a file.
#[derive(Default)]
struct Contents {
    raw: RawConfig,
    /// The line of the file at which the text begins.
    first_line: usize,
    /// Which of the keys apiVersion and kind the file has.
    header: BTreeSet<&'static str>,
    /// Keys of kube-proxy's settings that have no effect in portolan but are given a value.
    unused: BTreeSet<&'static str>,
    /// Line and reason of an error that this module found; None if the parser found it.
    fault: Option<(u64, String)>,
}

impl Contents {
    /// Converts a line number of the document to one of the file.
    fn line(&self, line: u64) -> u64 {
        let before = self.first_line.saturating_sub(1);
        line.saturating_add(u64::try_from(before).unwrap_or(0))
    }

    /// Notes a warning about an unknown or repeated key of the file.
    fn ignore(&mut self, file: &str, key: &Spanned<String>, reason: String) {
        let line = self.line(key.referenced.line());
        let object = format!("configuration file {file}, line {line}");
        self.raw.ignored.push(Warning { object, reason });
    }

    /// Makes an error about a key. The parser's own errors name only the line of the key's section.
    fn refuse<E: Error>(&mut self, key: &Spanned<String>, reason: String) -> E {
        let error = E::custom(&reason);
        self.fault = Some((self.line(key.referenced.line()), reason));
        error
    }
}

/// Reads a mapping of the file, or the file itself, with the help of `table`.
struct Section<'a> {
    path: &'a str,
    file: &'a str,
    contents: &'a mut Contents,
}

impl<'de> DeserializeSeed<'de> for Section<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_option(self)
    }
}

impl<'de> Visitor<'de> for Section<'_> {
    type Value = ();

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a mapping of settings")
    }
    fn visit_none<E>(self) -> Result<(), E> {
        Ok(())
    }
    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }
    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let Self {
            path,
            file,
            contents,
        } = self;
        let mut seen = BTreeSet::new();
        while let Some(name) = map.next_key::<Spanned<String>>()? {
            let key = table::join(path, &name.value);
            if !seen.insert(name.value.clone()) {
                // KUBE: of two equal sections, too, only the last one counts.
                let is_other = |known: &str| !table::is_within(known, &key);
                contents.raw.values.retain(|known, _| is_other(known));
                contents.unused.retain(|known| is_other(known));
                let reason =
                    format!("{key} stands more than once; the last one holds, remove the others");
                contents.ignore(file, &name, reason);
            }
            match table::find(&key) {
                Some(Entry::Setting(setting)) => {
                    let given: Json = map.next_value()?;
                    let value = read_value(setting, &given)
                        .map_err(|reason| contents.refuse(&name, reason))?;
                    if let Some(value) = value {
                        check_word(setting, &value)
                            .map_err(|reason| contents.refuse(&name, reason))?;
                        contents.raw.set(setting, value);
                    }
                }
                Some(Entry::Unused(key)) => {
                    if is_given(map.next_value::<Option<Json>>()?.as_ref()) {
                        contents.unused.insert(key);
                    }
                }
                Some(Entry::Section) => map.next_value_seed(Section {
                    path: &key,
                    file,
                    contents,
                })?,
                Some(Entry::Header(header, expected)) => match map.next_value()? {
                    Json::Null => {}
                    given if given == expected => _ = contents.header.insert(header),
                    given => {
                        let reason = format!("{key} is {given} where {expected} is wanted");
                        return Err(contents.refuse(&name, reason));
                    }
                },
                None => {
                    map.next_value::<IgnoredAny>()?;
                    contents.ignore(file, &name, unknown_key(path, &name.value));
                }
            }
        }
        Ok(())
    }
}

/// Reads the value of a setting; None if it is null or an empty text, Err with the reason if it is
/// refused. kube-proxy's own files contain many empty values.
fn read_value(setting: &Setting, given: &Json) -> Result<Option<Value>, String> {
    let refused = || {
        let values = setting.values().replace('`', "");
        format!("{} cannot be {given}; it takes: {values}", setting.key)
    };
    let value = match (setting.kind.shape(), given) {
        (_, Json::Null) => return Ok(None),
        (Shape::Text, Json::String(text)) if text.is_empty() => return Ok(None),
        (Shape::Text, Json::String(text)) => Some(Value::Text(text.clone())),
        // Zero needs no unit.
        (Shape::Text, Json::Number(number)) if matches!(setting.kind, Kind::Seconds(_)) => {
            Some(Value::Text(number.to_string()))
        }
        (Shape::Bool, Json::Bool(on)) => Some(Value::Bool(*on)),
        (Shape::Bool, Json::String(word)) => yaml_bool(word).map(Value::Bool),
        (Shape::Number, Json::Number(number)) => number.as_i64().map(Value::Number),
        (Shape::List, Json::Array(items)) => {
            let texts = items.iter().map(|item| item.as_str().map(str::to_owned));
            texts.collect::<Option<_>>().map(Value::List)
        }
        _ => None,
    };
    value.map(Some).ok_or_else(refused)
}

/// Parses YAML 1.1's other words for a boolean than true and false. KUBE: kube-proxy takes them.
fn yaml_bool(word: &str) -> Option<bool> {
    match word {
        "y" | "Y" | "yes" | "Yes" | "YES" | "on" | "On" | "ON" => Some(true),
        "n" | "N" | "no" | "No" | "NO" | "off" | "Off" | "OFF" => Some(false),
        _ => None,
    }
}

/// Refuses an unknown word of a setting with fixed words here, where the error can name the line.
fn check_word(setting: &Setting, value: &Value) -> Result<(), String> {
    if !matches!(setting.kind, Kind::Choice(_)) {
        return Ok(());
    }
    let read = setting.read(&mut Draft::default(), value);
    read.map_err(|error| error.to_string())
}

/// True if a setting without effect has a value: kube-proxy's own files name all, most empty.
fn is_given(value: Option<&Json>) -> bool {
    match value {
        None | Some(Json::Null | Json::Bool(false)) => false,
        Some(Json::Number(number)) => number.as_f64() != Some(0.0),
        Some(Json::String(text)) => !matches!(text.as_str(), "" | "0" | "0s" | "0.0.0.0" | "::"),
        Some(Json::Array(items)) => items.iter().any(|item| is_given(Some(item))),
        Some(Json::Object(fields)) => fields.values().any(|field| is_given(Some(field))),
        Some(Json::Bool(true)) => true,
    }
}

/// Describes an unknown key, and names the most similar key of any section, if one is near.
fn unknown_key(section: &str, name: &str) -> String {
    let name_lower = name.to_lowercase();
    let distance = |key: &'static str| {
        let (other, last) = table::split(key);
        let letters = strsim::damerau_levenshtein(&last.to_lowercase(), &name_lower);
        (letters, other != section, key)
    };
    let nearest = table::keys().map(distance).min();
    let near = nearest.filter(|(letters, ..)| *letters <= (name.chars().count() / 4).max(1));
    let remedy = match near {
        Some((.., key)) => format!("correct it to {key:?}, or remove it"),
        None => "remove it".to_owned(),
    };
    let key = table::join(section, name);
    format!("unknown key {key:?} is ignored; {remedy}")
}

/// Returns the text of a configuration file with these settings, defaults included.
pub fn render(config: &Config) -> anyhow::Result<String> {
    serde_saphyr::to_string(&document(config)?).context("write the settings")
}

/// Returns these settings as kube-proxy shows its own at /configz: every key, even without a value.
pub fn document(config: &Config) -> anyhow::Result<Json> {
    let mut file = Json::Object(serde_json::Map::new());
    for (key, value) in table::HEADER {
        insert(&mut file, key, Json::from(*value));
    }
    for setting in table::settings() {
        let value = serde_json::to_value(setting.write(config)).context("write the settings")?;
        insert(&mut file, setting.key, value);
    }
    Ok(file)
}

/// Inserts a value below the key's path (names with dots between); creates sections as needed.
fn insert(file: &mut Json, key: &str, value: Json) {
    *key.split('.')
        .fold(file, |section, name| &mut section[name]) = value;
}
