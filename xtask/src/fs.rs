// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads and writes files and folders; unlike those of `std::fs`, errors name the path.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};

fn named<T>(attempt: &str, path: &Path, result: io::Result<T>) -> Result<T> {
    result.with_context(|| format!("{attempt} {}", path.display()))
}

pub(crate) fn read(file: impl AsRef<Path>) -> Result<Vec<u8>> {
    named("read", file.as_ref(), fs::read(&file))
}

pub(crate) fn read_to_string(file: impl AsRef<Path>) -> Result<String> {
    named("read", file.as_ref(), fs::read_to_string(&file))
}

/// Writes a file, and makes its folder if it is missing.
pub(crate) fn write(file: impl AsRef<Path>, content: impl AsRef<[u8]>) -> Result<()> {
    if let Some(folder) = file.as_ref().parent() {
        create_dir_all(folder)?;
    }
    named("write", file.as_ref(), fs::write(&file, content))
}

/// Writes a file under another name first: the old one may be in use, and nobody sees half of it.
/// One that has this content keeps its modification time.
pub(crate) fn replace(file: &Path, content: impl AsRef<[u8]>) -> Result<()> {
    if fs::read(file).is_ok_and(|old| old == content.as_ref()) {
        return Ok(());
    }
    let partial = file.with_extension("partial");
    write(&partial, content)?;
    rename(&partial, file)
}

/// Removes `folder` and makes it again under another name, by `fill`, which has to create it: a
/// folder with the final name is complete.
pub(crate) fn replace_folder(folder: &Path, fill: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    let mut partial = folder.as_os_str().to_owned();
    partial.push(".partial");
    let partial = Path::new(&partial);
    remove_dir_all(partial)?;
    fill(partial)?;
    remove_dir_all(folder)?;
    rename(partial, folder)
}

/// Copies a file with its mode, what a link leads to, and makes the copy's folder.
pub(crate) fn copy(from: &Path, to: &Path) -> Result<()> {
    if let Some(folder) = to.parent() {
        create_dir_all(folder)?;
    }
    named("copy", from, fs::copy(from, to)).map(drop)
}

pub(crate) fn rename(from: &Path, to: &Path) -> Result<()> {
    named("make", to, fs::rename(from, to))
}

pub(crate) fn create_dir_all(folder: impl AsRef<Path>) -> Result<()> {
    named("make", folder.as_ref(), fs::create_dir_all(&folder))
}

/// Removes a folder and all that is in it, if it exists.
pub(crate) fn remove_dir_all(folder: &Path) -> Result<()> {
    if folder.exists() {
        named("remove", folder, fs::remove_dir_all(folder))?;
    }
    Ok(())
}

pub(crate) fn remove_file(file: &Path) -> Result<()> {
    named("remove", file, fs::remove_file(file))
}

/// Returns the paths of all files and folders in a folder.
pub(crate) fn children(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = named("read", folder, fs::read_dir(folder))?;
    entries.map(|entry| Ok(entry?.path())).collect()
}

/// Returns the last lines of a text file; an empty text if it cannot be read.
pub(crate) fn tail(file: &Path, count: usize) -> String {
    let text = fs::read_to_string(file).unwrap_or_default();
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

/// Returns the SHA-256 of a content in hexadecimal, a name in releases, images and the cache.
pub(crate) fn sha256(content: impl AsRef<[u8]>) -> String {
    let digest = Sha256::digest(content);
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}
