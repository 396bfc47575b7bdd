// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The formats of a command's output, and the writers for JSON, YAML and JSONPath.

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
    /// The expression, in the syntax of RFC 9535.
    JsonPath(String),
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
                Some(path) => json_path(path).map(Self::JsonPath),
                None => Err("use table, wide, json, yaml, name or jsonpath=EXPRESSION".to_owned()),
            },
        }
    }
}

/// Returns the expression in the syntax of RFC 9535; `text` may have kubectl's.
fn json_path(text: &str) -> Result<String, String> {
    let inner = text.strip_prefix('{');
    let bare = inner.and_then(|rest| rest.strip_suffix('}'));
    let bare = bare.unwrap_or(text);
    let expression = match bare.starts_with(['.', '[']) {
        true => format!("${bare}"),
        false => bare.to_owned(),
    };
    match parse_json_path(&expression).is_ok() {
        true => Ok(expression),
        false => Err("it is no JSONPath; for example jsonpath='{.items[*].service}'".to_owned()),
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
fn by_path(out: &mut impl Write, path: &str, value: serde_json::Value) -> io::Result<()> {
    // A list is a JSON array, which gets an `items` for a path as for kubectl's lists. A document
    // that has its own `items` stays as it is.
    let value = match path.starts_with("$.items") && value.is_array() {
        true => serde_json::json!({ "items": value }),
        false => value,
    };
    let found = value.query(path).map_err(io::Error::other)?;
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
        assert!(json_path("service").is_err());
    }
}
