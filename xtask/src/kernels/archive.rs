// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Writes a cpio archive of the format `newc`, which a kernel unpacks as its first file system
//! (initramfs). The kernel takes several such archives one after another as one. Used by
//! `initramfs`.

use std::{collections::BTreeSet, os::unix::fs::PermissionsExt, path::Path};

use anyhow::{Context, Result};

use crate::fs;

const DIRECTORY: u32 = 0o040_755;
const REGULAR: u32 = 0o100_000;
/// Alignment of each header with its name and of each content, in bytes.
const ALIGNMENT: usize = 4;

/// A cpio archive that is being written.
#[derive(Default)]
pub(super) struct Archive {
    bytes: Vec<u8>,
    paths: BTreeSet<String>,
}

impl Archive {
    /// Returns true if the archive has an entry with this path.
    pub(super) fn has(&self, path: &str) -> bool {
        self.paths.contains(path)
    }

    /// Adds a directory and its parents, unless the archive has them.
    pub(super) fn directory(&mut self, path: &str) {
        if path.is_empty() || path == "/" || self.has(path) {
            return;
        }
        self.parent(path);
        self.entry(path, DIRECTORY, &[]);
    }

    pub(super) fn file(&mut self, path: &str, mode: u32, content: &[u8]) {
        self.parent(path);
        self.entry(path, REGULAR | mode, content);
    }

    /// Adds the file `from` of this machine, with its mode, at the path `path`.
    pub(super) fn copy(&mut self, from: &Path, path: &str) -> Result<()> {
        let metadata = from
            .metadata()
            .with_context(|| format!("read {}", from.display()))?;
        let mode = metadata.permissions().mode() & 0o777;
        self.file(path, mode, &fs::read(from)?);
        Ok(())
    }

    /// Returns the finished archive's bytes.
    pub(super) fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[]);
        self.bytes
    }

    fn parent(&mut self, path: &str) {
        if let Some((parent, _)) = path.rsplit_once('/') {
            self.directory(parent);
        }
    }

    fn entry(&mut self, path: &str, mode: u32, content: &[u8]) {
        if !self.paths.insert(path.to_owned()) {
            return;
        }
        let name = path.trim_start_matches('/');
        let (inode, mode, links) = (self.paths.len(), mode as usize, 1);
        let (size, named) = (content.len(), name.len() + 1);
        let fields = [inode, mode, 0, 0, links, 0, size, 0, 0, 0, 0, named, 0];
        self.bytes.extend(b"070701");
        for field in fields {
            self.bytes.extend(format!("{field:08X}").bytes());
        }
        self.bytes.extend(name.bytes());
        self.bytes.push(0);
        self.align();
        self.bytes.extend(content);
        self.align();
    }

    fn align(&mut self) {
        let length = self.bytes.len().next_multiple_of(ALIGNMENT);
        self.bytes.resize(length, 0);
    }
}
