// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The formats of a command's output, and the writers for JSON, YAML and JSONPath. Used by `list`
//! and by commands with an overview.

use std::{
    io::{self, Write},
    str::FromStr,
};

use jsonpath_rust::{JsonPath, parser::parse_json_path};
use serde::Serialize;

/// The output format that the user asks for.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Format {
    #[default]
    Table,
    Wide,
    Json,
    Yaml,
    Name,
    JsonPath(PathArg),
}

/// A JSONPath expression, in the syntax of RFC 9535 or of kubectl.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PathArg {
    pub expression: String,
    /// True if the path begins with `items`, as for kubectl's lists.
    pub by_items: bool,
}

impl FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "table" => Ok(Self::Table),
            "wide" => Ok(Self::Wide),
            "json" => Ok(Self::Json),
            "yaml" => Ok(Self::Yaml),
            "name" => Ok(Self::Name),
            _ => match text.strip_prefix("jsonpath=") {
                Some(path) => path.parse().map(Self::JsonPath),
                None => Err("use table, wide, json, yaml, name or jsonpath=EXPRESSION".to_owned()),
            },
        }
    }
}

impl FromStr for PathArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let inner = text
            .strip_prefix('{')
            .and_then(|rest| rest.strip_suffix('}'));
        let bare = inner.unwrap_or(text);
        let expression = match bare.chars().next() {
            Some('.' | '[') => format!("${bare}"),
            _ => bare.to_owned(),
        };
        if parse_json_path(&expression).is_err() {
            return Err("it is no JSONPath; for example jsonpath='{.items[*].service}'".to_owned());
        }
        Ok(Self {
            by_items: expression.starts_with("$.items"),
            expression,
        })
    }
}

/// Writes a value as JSON, as YAML or through a JSONPath.
pub(super) fn document<T: Serialize>(
    out: &mut impl Write,
    format: &Format,
    value: &T,
) -> io::Result<()> {
    match format {
        Format::Yaml => serde_saphyr::to_io_writer(out, value).map_err(io::Error::other),
        Format::JsonPath(path) => by_path(out, path, serde_json::to_value(value)?),
        _ => {
            serde_json::to_writer_pretty(&mut *out, value)?;
            writeln!(out)
        }
    }
}

/// Writes one line for each value that the JSONPath selects.
fn by_path(out: &mut impl Write, path: &PathArg, value: serde_json::Value) -> io::Result<()> {
    // A list is a JSON array, which gets an `items` for such a path. A document that has its own
    // `items` stays as it is.
    let value = match path.by_items && value.is_array() {
        true => serde_json::json!({ "items": value }),
        false => value,
    };
    let found = value.query(&path.expression).map_err(io::Error::other)?;
    for value in found {
        match value {
            serde_json::Value::String(text) => writeln!(out, "{text}")?,
            other => writeln!(out, "{other}")?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_jsonpath_of_items_reads_a_bare_array_and_a_list_document() {
        for (path, value) in [
            ("$[*].a", json!([{"a": 1}])),
            ("[0].a", json!([{"a": 1}])),
            ("{.items[*].a}", json!([{"a": 1}])),
            ("{.items[*].a}", json!({"items": [{"a": 1}]})),
        ] {
            let format: Format = format!("jsonpath={path}").parse().expect("a path");
            let mut out = Vec::new();
            document(&mut out, &format, &value).expect("written");
            assert_eq!(String::from_utf8_lossy(&out), "1\n", "{value}");
        }
        assert!("service".parse::<PathArg>().is_err());
    }
}
