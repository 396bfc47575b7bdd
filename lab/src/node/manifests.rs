// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The folder of manifests that an agent reads. Used by `agent`.

use std::{
    fs,
    path::{Path, PathBuf},
};

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

/// The folder that an agent reads. `agent` removes it, together with its temporary folder around
/// it.
pub(super) struct ManifestFolder(PathBuf);

impl ManifestFolder {
    /// Creates the folder at `path` with its first manifests.
    pub(super) fn create(path: PathBuf, content: &Manifests<'_>) -> Result<Self> {
        fs::create_dir(&path).with_context(|| format!("make folder {}", path.display()))?;
        let folder = Self(path);
        match content {
            Manifests::Text(text) => folder.publish(text)?,
            Manifests::Folder(from) => copy_files(from, &folder.0)?,
        }
        Ok(folder)
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// Replaces the whole manifest file at once.
    pub(super) fn publish(&self, text: &str) -> Result<()> {
        let new = self.0.join(HALF_WRITTEN);
        fs::write(&new, text).with_context(|| format!("write {}", new.display()))?;
        let file = self.0.join("cluster.yaml");
        fs::rename(&new, &file).with_context(|| format!("replace {}", file.display()))
    }
}

fn copy_files(from: &Path, to: &Path) -> Result<()> {
    let attempt = || format!("copy the manifests in {}", from.display());
    for entry in fs::read_dir(from).with_context(attempt)? {
        let entry = entry.with_context(attempt)?;
        fs::copy(entry.path(), to.join(entry.file_name())).with_context(attempt)?;
    }
    Ok(())
}
