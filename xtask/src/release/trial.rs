// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A release for tests, made of the repository's own files, and of small placeholder files for the
//! parts that take minutes to build.

use anyhow::Result;

use super::{Commit, pack, pack::Files, pack::Parts, project};
use crate::arch::Arch;

pub(super) const VERSION: &str = "1.2.3";

/// Makes the files of the release for tests.
pub(crate) fn files() -> Result<Files> {
    pack::files(&parts()?)
}

pub(super) fn parts() -> Result<Parts> {
    let pages = ["portolan.1", "portolan-run.1", "portolan.bash", "_portolan"];
    Ok(Parts {
        version: VERSION.to_owned(),
        commit: Commit {
            id: "0123456789abcdef0123456789abcdef01234567".to_owned(),
            time: 1_700_000_000,
            date: "2023-11-14T22:13:20Z".to_owned(),
        },
        source: Some("https://example.org/portolan".to_owned()),
        maintainer: "A <a@example.org>".to_owned(),
        binaries: vec![
            (Arch::Amd64, b"one binary".to_vec()),
            (Arch::Arm64, b"another binary".to_vec()),
        ],
        pages: pages
            .map(|name| (name.to_owned(), name.as_bytes().to_vec()))
            .into(),
        project: project()?,
        bills: Files::from([(format!("portolan-{VERSION}.cdx.json"), b"{}".to_vec())]),
    })
}
