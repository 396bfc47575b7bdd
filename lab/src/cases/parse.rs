// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads conformance cases from files. Unknown fields are errors with file, line and field.

use std::{
    fmt, io,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::jiff::SignedDuration;
use proxy_common::Protocol;
use serde::{
    Deserialize, Deserializer,
    de::{Error, MapAccess, Visitor, value::MapAccessDeserializer},
};

use super::format::{Backends, Case, Expect, Flow};

impl<'de> Deserialize<'de> for Expect {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct WordOrMap;
        impl<'de> Visitor<'de> for WordOrMap {
            type Value = Expect;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("`reject`, `drop`, `untouched` or {backends: [...]}")
            }
            fn visit_str<E: Error>(self, word: &str) -> Result<Expect, E> {
                match word {
                    "reject" => Ok(Expect::Reject),
                    "drop" => Ok(Expect::Drop),
                    "untouched" => Ok(Expect::Untouched),
                    other => Err(E::unknown_variant(
                        other,
                        &["reject", "drop", "untouched", "{backends: [...]}"],
                    )),
                }
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Expect, A::Error> {
                Backends::deserialize(MapAccessDeserializer::new(map)).map(Expect::Backends)
            }
        }
        deserializer.deserialize_any(WordOrMap)
    }
}

pub(super) const fn tcp() -> Protocol {
    Protocol::TCP
}

pub(super) fn protocol<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Protocol, D::Error> {
    let name = String::deserialize(deserializer)?;
    parse_protocol(&name).ok_or_else(|| D::Error::unknown_variant(&name, &["TCP", "UDP", "SCTP"]))
}

/// Reads a protocol as Kubernetes spells it; None for any other text.
pub(super) fn parse_protocol(name: &str) -> Option<Protocol> {
    match name {
        "TCP" => Some(Protocol::TCP),
        "UDP" => Some(Protocol::UDP),
        "SCTP" => Some(Protocol::SCTP),
        _ => None,
    }
}

pub(super) fn pause<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Duration>, D::Error> {
    let text = String::deserialize(deserializer)?;
    let parsed = text.parse::<SignedDuration>().and_then(Duration::try_from);
    let fault = || format!("`wait: {text}` is no pause: write 3s, 500ms or 1m");
    parsed.map(Some).map_err(|_| D::Error::custom(fault()))
}

impl Case {
    /// Reads one case file, and checks that the case has the file's name.
    pub fn read(path: &Path) -> Result<Self> {
        let file = path.display();
        let text = std::fs::read_to_string(path).with_context(|| format!("read {file}"))?;
        let case = Self::parse(&text).with_context(|| file.to_string())?;
        let name = &*case.case;
        if path.file_stem().is_none_or(|stem| stem != name) {
            bail!("{file}: the case is called {name}: give file and case one name");
        }
        Ok(case)
    }

    /// Reads a case from text. Also checks what the types cannot express.
    pub fn parse(text: &str) -> Result<Self> {
        let case: Self = serde_saphyr::from_str(text)?;
        let has_address = !case.node.ips.is_empty();
        ensure!(has_address, "node.ips is empty: name at least one address");
        for (number, step) in (1..).zip(&case.steps) {
            for flow in &step.flows {
                let attempt = || format!("step {number}, flow from {}", flow.from);
                flow.check().with_context(attempt)?;
            }
        }
        Ok(case)
    }
}

impl Flow {
    fn check(&self) -> Result<()> {
        match (&self.to, &self.expect, &self.expect_health) {
            (Some(to), Some(_), None) => ensure!(
                to.is_ipv4() == self.from.is_ipv4(),
                "`from` and `to` ({to}) are of different families"
            ),
            (None, None, Some(_)) => {}
            _ => bail!("a flow has either `to` and `expect` or `expect_health` alone"),
        }
        ensure!(self.repeat != Some(0), "`repeat: 0` opens no connection");
        Ok(())
    }
}

/// Returns the paths of all case files in a folder, ordered by name; an error if there are none.
pub fn files_in(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries =
        std::fs::read_dir(folder).with_context(|| format!("read {}", folder.display()))?;
    let paths = entries.map(|entry| entry.map(|entry| entry.path()));
    let mut files = paths.collect::<io::Result<Vec<_>>>()?;
    let ends = |path: &Path, end: &str| path.extension().is_some_and(|found| found == end);
    if let Some(path) = files.iter().find(|path| ends(path, "yml")) {
        bail!("{}: a case's file ends with .yaml", path.display());
    }
    files.retain(|path| ends(path, "yaml"));
    files.sort();
    let path = folder.display();
    ensure!(!files.is_empty(), "no case (*.yaml) in {path}");
    Ok(files)
}
