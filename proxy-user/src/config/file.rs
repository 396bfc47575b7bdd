// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The configuration file: kube-proxy's `KubeProxyConfiguration` of v1alpha1, with our own settings in its
//! section `portolan`. Reads a file into a `RawConfig` and writes a `Config` to one, both by the table.

use std::{collections::BTreeSet, path::Path};

use anyhow::Context;
use serde::{
    Deserialize,
    de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, Visitor},
};
use serde_json::Value as Json;
use serde_saphyr::Spanned;

use super::{
    Config, ConfigError, RawConfig,
    draft::Draft,
    setting::{Kind, Setting, Shape, Value},
    table::{self, Entry},
};
use crate::object::Warning;

impl RawConfig {
    /// Reads a configuration file.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let shown = path.display().to_string();
        let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Unreadable {
            path: shown.clone(),
            source,
        })?;
        Self::parse(&shown, &text)
    }

    /// Reads the text of a configuration file; errors name the path.
    pub(crate) fn parse(path: &str, text: &str) -> Result<Self, ConfigError> {
        // An empty file sets nothing. Neither does a file of comments only.
        if text.lines().all(|line| {
            let line = line.trim();
            line.is_empty() || line.starts_with('#') || line == "---"
        }) {
            return Ok(Self::default());
        }
        let mut contents = Contents::default();
        // KUBE: the last of two equal keys holds.
        let options = serde_saphyr::options! {
            with_snippet: false,
            duplicate_keys: serde_saphyr::DuplicateKeyPolicy::LastWins,
        };
        let read = serde_saphyr::with_deserializer_from_str_with_options(text, options, |file| {
            let file_itself = Section {
                path: "",
                file: path,
                contents: &mut contents,
            };
            file_itself.deserialize(file)
        });
        let Contents {
            mut raw,
            unused,
            fault,
        } = contents;
        read.map_err(|error| {
            let (line, reason) = fault.unwrap_or_else(|| {
                let line = error.location().map_or(1, |location| location.line());
                (line, crate::watch::documents::describe(&error, text))
            });
            let path = path.to_owned();
            ConfigError::Malformed { path, line, reason }
        })?;
        // In the table's order.
        let unused_keys = table::unused().flat_map(|unused| unused.keys);
        for key in unused_keys.filter(|key| unused.contains(*key)) {
            raw.add_unused((*key).to_owned());
        }
        Ok(raw)
    }
}

/// The part of a file that has been read.
#[derive(Default)]
struct Contents {
    raw: RawConfig,
    /// Keys of kube-proxy's settings that mean nothing here and are given a value.
    unused: BTreeSet<&'static str>,
    /// Line and reason if we refused the file, and not the parser.
    fault: Option<(u64, String)>,
}

impl Contents {
    /// Notes that a key of the file is not used as it is.
    fn ignore(&mut self, file: &str, key: &Spanned<String>, reason: String) {
        let object = format!("configuration file {file}, line {}", key.referenced.line());
        self.raw.ignore(Warning { object, reason });
    }

    /// Refuses a key. The parser's own errors name only the line of the section that the key is in.
    fn refuse<E: Error>(&mut self, key: &Spanned<String>, reason: String) -> E {
        let error = E::custom(&reason);
        self.fault = Some((key.referenced.line(), reason));
        error
    }
}

/// Reads a mapping of the file, the file itself included, by the table.
struct Section<'a> {
    path: &'a str,
    /// The file, for warnings.
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
                // KUBE: of two equal sections, too, the last one alone holds.
                contents.raw.forget(&key);
                contents
                    .unused
                    .retain(|unused| !table::is_within(unused, &key));
                let reason =
                    format!("{key} stands more than once; the last one holds, remove the others");
                contents.ignore(file, &name, reason);
            }
            match table::find(&key) {
                Some(Entry::Setting(setting)) => {
                    if let Some(value) = read_value(setting, &mut map)? {
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
                Some(Entry::Header(expected)) => {
                    let given: Option<String> = map.next_value()?;
                    if let Some(given) = given.filter(|given| given != expected) {
                        let reason = format!("{key} is {given:?} where {expected} is wanted");
                        return Err(contents.refuse(&name, reason));
                    }
                }
                None => {
                    map.next_value::<IgnoredAny>()?;
                    contents.ignore(file, &name, unknown_key(path, &name.value));
                }
            }
        }
        Ok(())
    }
}

/// The value of a setting; none if it is null or an empty text. kube-proxy's own files contain many of these.
fn read_value<'de, A: MapAccess<'de>>(
    setting: &Setting,
    map: &mut A,
) -> Result<Option<Value>, A::Error> {
    fn next<'de, T: Deserialize<'de>, A: MapAccess<'de>>(
        map: &mut A,
    ) -> Result<Option<T>, A::Error> {
        map.next_value()
    }
    Ok(match setting.kind.shape() {
        Shape::Bool => next(map)?.map(Value::Bool),
        Shape::Number => next(map)?.map(Value::Number),
        Shape::Text => {
            let text: Option<String> = next(map)?;
            text.filter(|text| !text.is_empty()).map(Value::Text)
        }
        Shape::List => next(map)?.map(Value::List),
    })
}

/// Refuses an unknown word at once, so that the error can name the line.
fn check_word(setting: &Setting, value: &Value) -> Result<(), String> {
    if !matches!(setting.kind, Kind::Choice(_)) {
        return Ok(());
    }
    let read = setting.read(&mut Draft::default(), value);
    read.map_err(|error| error.to_string())
}

/// Whether an unused setting is given a value. kube-proxy's own files name every setting, most of them with an
/// empty value.
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

/// Names the key that was most likely meant: of this section, or of another one with its whole path.
fn unknown_key(section: &str, name: &str) -> String {
    let name_lower = name.to_lowercase();
    let distance = |key: &&str| {
        let (other_section, last) = table::split(key);
        let letters = strsim::damerau_levenshtein(&last.to_lowercase(), &name_lower);
        (letters, other_section != section)
    };
    let nearest = table::keys().min_by_key(distance).map(table::split);
    let nearest = nearest.map_or_else(String::new, |(other, last)| match other {
        other if other == section => last.to_owned(),
        other => table::join(other, last),
    });
    format!(
        "unknown key {name:?} is ignored; remove it, or correct it: the nearest key is {nearest:?}"
    )
}

/// The text of a file with these settings, defaults included.
pub fn render(config: &Config) -> anyhow::Result<String> {
    serde_saphyr::to_string(&document(config)?).context("write the settings")
}

/// A file with these settings, as kube-proxy shows its own at /configz.
pub fn document(config: &Config) -> anyhow::Result<Json> {
    let mut file = Json::Object(serde_json::Map::new());
    for (key, value) in table::HEADER {
        insert(&mut file, key, Json::from(*value));
    }
    for setting in table::settings() {
        if let Some(value) = setting.write(config) {
            let value = serde_json::to_value(value).context("write the settings")?;
            insert(&mut file, setting.key, value);
        }
    }
    Ok(file)
}

/// Puts a value at its path, in sections that are made as needed.
fn insert(file: &mut Json, key: &str, value: Json) {
    *key.split('.')
        .fold(file, |section, name| &mut section[name]) = value;
}
