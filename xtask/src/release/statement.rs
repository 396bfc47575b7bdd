// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The provenance of a release as an in-toto statement, ready to be signed: which files were built,
//! from which commit, with which tools.

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::pack::{Files, Parts};
use crate::hash::sha256;

/// The URI that SLSA requires to identify this kind of build.
const BUILD_TYPE: &str = "https://portolan.dev/build/xtask-release/v1";

/// Returns the statement about these files, as JSON in the form of SLSA's provenance v1. It
/// contains no time, so that the same build gives the same statement.
pub(super) fn statement(parts: &Parts, files: &Files) -> Result<Vec<u8>> {
    let subjects: Vec<_> = files
        .iter()
        .map(|(name, content)| json!({"name": name, "digest": {"sha256": sha256(content)}}))
        .collect();
    let archs: Vec<_> = parts.binaries.iter().map(|(arch, _)| arch.name()).collect();
    let lock = parts.project("Cargo.lock")?;
    let mut source = json!({"digest": {"gitCommit": parts.commit.id}});
    if let Some(address) = &parts.source {
        source["uri"] = json!(format!("git+{address}"));
    }
    let statement: Value = json!({
        "_type": "https://in-toto.io/Statement/v1",
        "subject": subjects,
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": {"version": parts.version, "arch": archs},
                "resolvedDependencies": [
                    source,
                    {"name": "Cargo.lock", "digest": {"sha256": sha256(lock)}},
                ],
            },
            // Whoever signs the statement replaces this name of the builder.
            "runDetails": {"builder": {"id": "https://portolan.dev/builder/unsigned"}},
        },
    });
    let mut text = serde_json::to_vec_pretty(&statement).context("write the statement")?;
    text.push(b'\n');
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::release::{pack::files, trial::parts};

    #[test]
    fn the_statement_names_every_other_file_with_its_digest_and_the_commit() {
        let parts = parts().expect("parts");
        let files = files(&parts).expect("a release");
        let text = &files["portolan-1.2.3.intoto.json"];
        let statement: Value = serde_json::from_slice(text).expect("JSON");
        let subjects = statement["subject"].as_array().expect("subjects");
        // All files except the statement itself and the checksums, which include the statement's.
        assert_eq!(subjects.len(), files.len() - 2);
        for subject in subjects {
            let name = subject["name"].as_str().expect("a name");
            assert_eq!(subject["digest"]["sha256"], sha256(&files[name]), "{name}");
        }
        let definition = &statement["predicate"]["buildDefinition"];
        let commit = &definition["resolvedDependencies"][0];
        assert_eq!(commit["digest"]["gitCommit"], parts.commit.id);
        assert_eq!(commit["uri"], "git+https://example.org/portolan");
    }
}
