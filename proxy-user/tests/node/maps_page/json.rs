// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Formats bpftool's output on fewer lines, with the fields in the order of the layout.

use std::{
    collections::BTreeSet,
    fmt::{self, Write},
};

use serde::{
    Deserialize, Deserializer,
    de::{Error, MapAccess, SeqAccess, Visitor},
};

/// JSON of objects, arrays and whole numbers.
#[derive(Clone, Debug)]
pub(super) enum Json {
    Object(Vec<(String, Json)>),
    Array(Vec<Json>),
    Number(i128),
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reads;
        impl<'de> Visitor<'de> for Reads {
            type Value = Json;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object, an array or a whole number")
            }
            fn visit_u64<E: Error>(self, number: u64) -> Result<Json, E> {
                Ok(Json::Number(number.into()))
            }
            fn visit_i64<E: Error>(self, number: i64) -> Result<Json, E> {
                Ok(Json::Number(number.into()))
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Json, A::Error> {
                let mut fields = Vec::new();
                while let Some(field) = map.next_entry()? {
                    fields.push(field);
                }
                Ok(Json::Object(fields))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Json, A::Error> {
                let mut elements = Vec::new();
                while let Some(element) = list.next_element()? {
                    elements.push(element);
                }
                Ok(Json::Array(elements))
            }
        }
        deserializer.deserialize_any(Reads)
    }
}

impl Json {
    pub(super) fn get(&self, name: &str) -> Option<&Self> {
        let Self::Object(fields) = self else {
            return None;
        };
        let mut named = fields.iter().filter(|(field, _)| field == name);
        named.next().map(|(_, value)| value)
    }

    /// A number, or the number inside a type that wraps one.
    pub(super) fn number(&self) -> Option<u64> {
        match self {
            Self::Number(number) => u64::try_from(*number).ok(),
            other => other.get("__0")?.number(),
        }
    }

    /// Formats the value on one line.
    pub(super) fn line(&self) -> String {
        match self {
            Self::Number(number) => number.to_string(),
            Self::Array(elements) => {
                // Texts and lists are long and end in zeros.
                let zeros = elements.iter().rev();
                let zeros = zeros.take_while(|element| matches!(element, Self::Number(0)));
                let shown = match elements.len() {
                    ..=16 => elements.len(),
                    all => (all - zeros.count()).max(1),
                };
                let mut shown: Vec<_> = elements[..shown].iter().map(Self::line).collect();
                if matches!(elements.first(), Some(Self::Object(_))) {
                    shown.dedup();
                }
                format!("[{}]", shown.join(","))
            }
            Self::Object(fields) => {
                let fields = fields.iter();
                let fields = fields.map(|(name, value)| format!("\"{name}\": {}", value.line()));
                format!("{{{}}}", fields.collect::<Vec<_>>().join(", "))
            }
        }
    }

    /// Formats one field a line; a short value stays on one line.
    pub(super) fn fold(&self, depth: usize, text: &mut String) {
        const WIDTH: usize = 100;
        let line = self.line();
        let Self::Object(fields) = self else {
            text.push_str(&line);
            return;
        };
        let is_flat = fields.iter().all(|(_, value)| {
            !matches!(value, Self::Object(inner) if inner.len() > 1) && value.line().len() < 30
        });
        if depth > 0 && is_flat && line.len() < WIDTH {
            text.push_str(&line);
            return;
        }
        let indent = "  ".repeat(depth + 1);
        text.push('{');
        for (place, (name, value)) in fields.iter().enumerate() {
            let comma = if place == 0 { "" } else { "," };
            write!(text, "{comma}\n{indent}\"{name}\": ").expect("a String");
            value.fold(depth + 1, text);
        }
        write!(text, "\n{}}}", "  ".repeat(depth)).expect("a String");
    }

    /// The paths of all fields; all elements of an array share their paths.
    pub(super) fn fields(&self) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        self.collect("", &mut found);
        found
    }

    fn collect(&self, path: &str, found: &mut BTreeSet<String>) {
        match self {
            Self::Object(fields) => {
                for (name, value) in fields {
                    value.collect(&format!("{path}/{name}"), found);
                }
            }
            Self::Array(elements) if !matches!(elements.first(), Some(Self::Number(_)) | None) => {
                for element in elements {
                    element.collect(path, found);
                }
            }
            _ => _ = found.insert(path.to_owned()),
        }
    }
}
