// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads objects from the text of a manifest file: documents, lists, kinds. Called by
//! `source::manifests`.

mod split;
#[cfg(test)]
mod tests;

use k8s_openapi::api::{
    core::v1::{Namespace, Node, Service},
    discovery::v1::EndpointSlice,
    networking::v1::ServiceCIDR,
};
use serde::{Deserialize, de::DeserializeOwned};

use crate::{
    model::{Converter, Object, Original, original},
    object::Warning,
};
use split::documents;
pub use split::{Document, first, is_blank};

/// How the apiVersion of objects of the Gateway API begins.
const GATEWAYS: &str = "gateway.networking.k8s.io/v1";

/// What a manifest file contains.
#[derive(Debug, Default)]
pub struct Content {
    /// The objects in the order of the file, each with the warnings about it.
    pub objects: Vec<(Object, Vec<Warning>)>,
    /// Warnings about skipped documents.
    pub warnings: Vec<Warning>,
}

/// Why the entire file cannot be used.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {reason}")]
pub struct Malformed {
    /// The document and line of the file where the fault is.
    pub place: String,
    pub reason: String,
}

/// The fields that identify the kind of an object.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Header {
    api_version: Option<String>,
    kind: Option<String>,
}

#[derive(Deserialize)]
struct List {
    #[serde(default)]
    items: Vec<serde_json::Value>,
}

/// Reads all documents of a file; fails if one of them cannot be read.
pub fn read(file: &str, text: &str, converter: &mut Converter) -> Result<Content, Malformed> {
    let mut content = Content::default();
    // A byte order mark of UTF-8, which some editors add and no JSON parser accepts.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    // JSON has its own parser because YAML forbids tabs as indentation.
    if file.ends_with(".json") {
        let values = serde_json::Deserializer::from_str(text).into_iter::<serde_json::Value>();
        for (index, value) in values.enumerate() {
            let place = |_| format!("object {}", index + 1);
            let mut value = value.map_err(|error| Malformed {
                place: place(None),
                reason: format!("this is no JSON: {error}"),
            })?;
            let mut reader = Reader {
                place: &place,
                file,
                converter: &mut *converter,
                content: &mut content,
            };
            match value.get_mut("items").map(serde_json::Value::take) {
                Some(serde_json::Value::Array(items)) => reader.items(items)?,
                _ => reader.value(value, place(None))?,
            }
        }
        return Ok(content);
    }
    let documents = documents(text);
    let documents = documents.iter().filter(|document| !is_blank(document.text));
    for (index, document) in documents.enumerate() {
        let place = |line: Option<u64>| {
            let line = line.map_or(document.first_line, |line| {
                document.first_line + usize::try_from(line).unwrap_or(1).saturating_sub(1)
            });
            format!("document {}, line {line}", index + 1)
        };
        let mut reader = Reader {
            place: &place,
            file,
            converter: &mut *converter,
            content: &mut content,
        };
        reader.document(document.text)?;
    }
    Ok(content)
}

/// Returns every object of a file, not converted; leaves out documents that cannot be read.
pub fn values(file: &str, text: &str) -> Vec<serde_json::Value> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let read: Vec<serde_json::Value> = if file.ends_with(".json") {
        let values = serde_json::Deserializer::from_str(text).into_iter();
        values.map_while(Result::ok).collect()
    } else {
        let documents = documents(text).into_iter();
        documents
            .filter_map(|document| serde_saphyr::from_str(document.text).ok())
            .collect()
    };
    let items = read
        .into_iter()
        .flat_map(|mut value| match value.get_mut("items") {
            Some(serde_json::Value::Array(items)) => std::mem::take(items),
            _ => vec![value],
        });
    items.collect()
}

/// An object that is not converted yet.
enum Form<'a> {
    Text(&'a str),
    Value(serde_json::Value),
}

struct Reader<'a> {
    place: &'a dyn Fn(Option<u64>) -> String,
    file: &'a str,
    converter: &'a mut Converter,
    content: &'a mut Content,
}

impl Reader<'_> {
    fn document(&mut self, text: &str) -> Result<(), Malformed> {
        // Fast path: nearly every document has its kind on a line of its own. If that fails, the
        // header is parsed.
        if let Some((version, kind)) = glance(text)
            && self.object(text, version, kind).is_ok()
        {
            return Ok(());
        }
        let header: Header = self.parse(text)?;
        let version = header.api_version.unwrap_or_default();
        let kind = header.kind.unwrap_or_default();
        self.object(text, &version, &kind)
    }

    /// Reads an object, or each object of a list; an object that cannot be read adds nothing.
    fn object(&mut self, text: &str, version: &str, kind: &str) -> Result<(), Malformed> {
        if kind.ends_with("List") {
            let list: List = self.parse(text)?;
            return self.items(list.items);
        }
        self.read(Form::Text(text), version, kind, (self.place)(None))
    }

    fn items(&mut self, items: Vec<serde_json::Value>) -> Result<(), Malformed> {
        for (index, item) in items.into_iter().enumerate() {
            self.value(item, format!("{}, items[{index}]", (self.place)(None)))?;
        }
        Ok(())
    }

    fn value(&mut self, item: serde_json::Value, place: String) -> Result<(), Malformed> {
        let text = |field: &str| {
            let value = item.get(field).and_then(serde_json::Value::as_str);
            value.unwrap_or_default().to_owned()
        };
        let (version, kind) = (text("apiVersion"), text("kind"));
        self.read(Form::Value(item), &version, &kind, place)
    }

    fn read(
        &mut self,
        form: Form<'_>,
        version: &str,
        kind: &str,
        place: String,
    ) -> Result<(), Malformed> {
        // As an API server does, earlier versions (`v1beta1`, `v1alpha2`) are read as `v1`.
        let gateways = self.converter.gateways;
        let group = match version.starts_with(GATEWAYS) {
            true if gateways => GATEWAYS,
            true => "",
            false => version,
        };
        match (group, kind) {
            ("v1", "Service") => self.add::<Service>(form, &place),
            ("discovery.k8s.io/v1", "EndpointSlice") => self.add::<EndpointSlice>(form, &place),
            ("v1", "Node") => self.add::<Node>(form, &place),
            ("networking.k8s.io/v1", "ServiceCIDR") => self.add::<ServiceCIDR>(form, &place),
            ("v1", "Namespace") if gateways => self.add::<Namespace>(form, &place),
            (GATEWAYS, "GatewayClass") => self.add::<original::GatewayClass>(form, &place),
            (GATEWAYS, "Gateway") => self.add::<original::Gateway>(form, &place),
            (GATEWAYS, "TCPRoute") => self.add::<original::TCPRoute>(form, &place),
            (GATEWAYS, "UDPRoute") => self.add::<original::UDPRoute>(form, &place),
            (GATEWAYS, "ReferenceGrant") => self.add::<original::ReferenceGrant>(form, &place),
            _ => {
                self.skip(version, kind, place);
                Ok(())
            }
        }
    }

    fn parse<T: DeserializeOwned>(&self, text: &str) -> Result<T, Malformed> {
        // The limits on nesting and aliases remain. Limits on size would refuse the list of a large
        // cluster.
        let options = serde_saphyr::options! {
            with_snippet: false,
            budget: serde_saphyr::budget! {
                max_events: usize::MAX,
                max_nodes: usize::MAX,
                max_total_scalar_bytes: usize::MAX,
            },
        };
        serde_saphyr::from_str_with_options(text, options).map_err(|error| Malformed {
            place: (self.place)(error.location().map(|location| location.line())),
            reason: describe(&error, text),
        })
    }

    fn add<T: Original + DeserializeOwned>(
        &mut self,
        form: Form<'_>,
        place: &str,
    ) -> Result<(), Malformed> {
        let original: T = match form {
            Form::Text(text) => self.parse(text)?,
            Form::Value(value) => {
                let name = named(&value);
                serde_path_to_error::deserialize(value).map_err(|error| Malformed {
                    place: format!("{place}, {name}"),
                    reason: format!("{}: {}", error.path(), plain(&error.inner().to_string())),
                })?
            }
        };
        match original.convert(self.converter) {
            Ok(converted) => self.content.objects.push(converted),
            Err(warning) => self.content.warnings.push(Warning {
                object: format!("{}, {}", self.file, (self.place)(None)),
                reason: format!("{}: {}", warning.object, warning.reason),
            }),
        }
        Ok(())
    }

    fn skip(&mut self, version: &str, kind: &str, place: String) {
        let what = match (version, kind) {
            (_, "") => "an object without a kind".to_owned(),
            ("", kind) => format!("kind {kind} without an apiVersion"),
            (version, kind) => format!("kind {kind} of {version}"),
        };
        self.content.warnings.push(Warning {
            object: format!("{}, {place}", self.file),
            reason: format!(
                "{what} is skipped; only Service and Node of v1, EndpointSlice of discovery.k8s.io/v1 and ServiceCIDR of networking.k8s.io/v1 are read here, move it out of this folder",
            ),
        });
    }
}

/// Returns apiVersion and kind of a document; None if they are not on lines of their own, or if the
/// agent does not read this kind.
fn glance(text: &str) -> Option<(&str, &str)> {
    let plain = |key: &str| {
        let mut lines = text.lines().filter_map(|line| line.strip_prefix(key));
        let value = lines.next()?.trim();
        lines.next().is_none().then_some(value)
    };
    let (version, kind) = (plain("apiVersion:")?, plain("kind:")?);
    let ours = matches!(
        (version, kind),
        ("v1", "Service" | "Node")
            | ("discovery.k8s.io/v1", "EndpointSlice")
            | ("networking.k8s.io/v1", "ServiceCIDR")
    );
    ours.then_some((version, kind))
}

/// Returns kind, namespace and name of an object that cannot be read.
fn named(object: &serde_json::Value) -> String {
    let text = |value: &serde_json::Value| value.as_str().unwrap_or("?").to_owned();
    let metadata = &object["metadata"];
    let name = text(&metadata["name"]);
    let kind = text(&object["kind"]);
    match metadata["namespace"].as_str() {
        Some(namespace) => format!("{kind} {namespace}/{name}"),
        None => format!("{kind} {name}"),
    }
}

/// Describes the error in one line, with the faulty line of `text`.
pub fn describe(error: &serde_saphyr::Error, text: &str) -> String {
    let said = error.render_with_formatter(&serde_saphyr::UserMessageFormatter);
    let first = said.lines().next().unwrap_or_default();
    let first = first.trim_start_matches("error: ");
    // The parser counts lines from the start of the document, so its number is left out.
    let first = match first.find(" at line ") {
        Some(at) => first.get(..at).unwrap_or(first),
        None => first,
    };
    let first = plain(first);
    let line = error.location().and_then(|location| {
        let index = usize::try_from(location.line()).ok()?.checked_sub(1)?;
        let line = text.lines().nth(index)?.trim();
        (!line.is_empty()).then(|| line.chars().take(80).collect::<String>())
    });
    match line {
        Some(line) => format!("{first} in `{line}`"),
        None => first,
    }
}

/// Rewrites a parser's message for operators. It knows "expected X", "invalid X" and "invalid type:
/// Y, expected X", and returns other messages as they are.
fn plain(said: &str) -> String {
    let (given, expected) = match said.rsplit_once(", expected ") {
        Some((given, expected)) => (given.split_once(": ").map(|(_, given)| given), expected),
        None => match said
            .strip_prefix("expected ")
            .or(said.strip_prefix("invalid "))
        {
            Some(expected) => (None, expected),
            None => return said.to_owned(),
        },
    };
    let number = |word: &str| {
        let digits = word.strip_prefix(['i', 'u', 'f']);
        digits.is_some_and(|digits| digits.parse::<u8>().is_ok())
    };
    let wanted = match expected {
        "sequence start" | "a sequence" => "a list",
        "mapping start" | "a map" => "a mapping",
        "string scalar" | "scalar" | "a string" => "a text",
        "bool" | "a boolean" => "true or false",
        "Int" | "an integer" => "a number",
        expected if number(expected) => "a number",
        // Any other such word is the name of a type that has fields.
        expected if expected.starts_with(|first: char| first.is_ascii_uppercase()) => "a mapping",
        _ => return said.to_owned(),
    };
    match given {
        Some(given) => format!("{wanted} is wanted, not {given}"),
        None => format!("{wanted} is wanted"),
    }
}
