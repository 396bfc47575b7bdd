// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A compressed tar archive of small files in one folder, readable only by its owner. A file that
//! could not be read is in its list of errors instead.

use std::{
    fmt::Display,
    fs::OpenOptions,
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::Path,
    time::UNIX_EPOCH,
};

use anyhow::{Context, Result};
use flate2::{Compression, write::GzEncoder};
use serde::Serialize;
use tar::{Builder, Header};

use crate::frame::BadInput;

/// A tar archive that is being written.
pub(super) struct Archive {
    builder: Builder<GzEncoder<Box<dyn Write>>>,
    folder: String,
    now: u64,
    /// Why something could not be read.
    pub(super) errors: Vec<String>,
}

impl Archive {
    /// Creates the archive file, which must not exist yet; `-` means standard output.
    pub(super) fn create(path: &Path, node: &str) -> Result<Self> {
        let out: Box<dyn Write> = match path.to_str() {
            Some("-") => Box::new(io::stdout()),
            _ => {
                let mut options = OpenOptions::new();
                let file = options.write(true).create_new(true).mode(0o600).open(path);
                let path = path.display();
                let bad = |error: io::Error| BadInput(format!("cannot make {path}: {error}"));
                Box::new(file.map_err(bad)?)
            }
        };
        let now = UNIX_EPOCH.elapsed().unwrap_or_default().as_secs();
        Ok(Self {
            builder: Builder::new(GzEncoder::new(out, Compression::default())),
            folder: format!("portolan-{node}-{now}"),
            now,
            errors: Vec::new(),
        })
    }

    pub(super) fn add(&mut self, name: &str, content: &[u8]) -> Result<()> {
        let mut header = Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o600);
        header.set_mtime(self.now);
        let path = format!("{}/{name}", self.folder);
        let added = self.builder.append_data(&mut header, path, content);
        added.with_context(|| format!("write {name} into the archive"))
    }

    /// Adds a text, or notes why it could not be read. Fails if the archive cannot be written.
    pub(super) fn text<E: Display>(&mut self, name: &str, read: Result<String, E>) -> Result<()> {
        match read {
            Ok(text) => self.add(name, text.as_bytes()),
            Err(error) => {
                self.errors.push(format!("{name}: {error}"));
                Ok(())
            }
        }
    }
    /// Adds a value as a JSON file, as [`Self::text`] does.
    pub(super) fn json<T: Serialize, E: Display>(
        &mut self,
        name: &str,
        read: Result<T, E>,
    ) -> Result<()> {
        let text = read.map(|value| serde_json::to_string_pretty(&value));
        match text {
            Ok(text) => self.text(name, text),
            Err(error) => self.text(name, Err(error)),
        }
    }

    /// Adds the list of errors and the archive's end, and empties all buffers. Returns the errors.
    pub(super) fn finish(mut self) -> Result<Vec<String>> {
        self.add("errors.txt", self.errors.join("\n").as_bytes())?;
        let ended = self.builder.into_inner().and_then(GzEncoder::finish);
        let flushed = ended.and_then(|mut out| out.flush());
        flushed.context("write the archive's end")?;
        Ok(self.errors)
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt};

    use super::*;

    /// What is in an archive: `dump` of `proxy-user/tests/node`.
    #[test]
    fn a_dump_archive_is_its_owners_and_overwrites_no_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("dump.tar.gz");
        let mut archive = Archive::create(&path, "node-a").expect("a file");
        archive.text("c.txt", Err("no c")).expect("noted");
        assert_eq!(archive.finish().expect("written"), ["c.txt: no c"]);
        let mode = fs::metadata(&path).expect("the file").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let error = Archive::create(&path, "node-a").err().expect("it is there");
        assert!(error.is::<BadInput>(), "{error}");
    }
}
