// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The folder of manifests that an agent reads. Used by `agent`.

use std::{fs, path::Path};

use anyhow::{Context, Result};

/// The manifest file's name while it is written. The agent does not read a file of this name.
const HALF_WRITTEN: &str = ".cluster.yaml.new";

/// The manifests with which an agent starts.
pub enum Manifests<'a> {
    /// The content of the only file.
    Text(&'a str),
    /// Copies of all files of this folder.
    Folder(&'a Path),
}

/// Creates the folder at `path` with its first manifests. `agent` removes it, together with its
/// temporary folder around it.
pub(super) fn create(path: &Path, content: &Manifests<'_>) -> Result<()> {
    fs::create_dir(path).with_context(|| format!("make folder {}", path.display()))?;
    match content {
        Manifests::Text(text) => publish(path, text),
        Manifests::Folder(from) => copy_files(from, path),
    }
}

/// Replaces the whole manifest file of a folder at once.
pub(super) fn publish(folder: &Path, text: &str) -> Result<()> {
    let new = folder.join(HALF_WRITTEN);
    fs::write(&new, text).with_context(|| format!("write {}", new.display()))?;
    let file = folder.join("cluster.yaml");
    fs::rename(&new, &file).with_context(|| format!("replace {}", file.display()))
}

fn copy_files(from: &Path, to: &Path) -> Result<()> {
    let attempt = || format!("copy the manifests in {}", from.display());
    for entry in fs::read_dir(from).with_context(attempt)? {
        let entry = entry.with_context(attempt)?;
        fs::copy(entry.path(), to.join(entry.file_name())).with_context(attempt)?;
    }
    Ok(())
}
