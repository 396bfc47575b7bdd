// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A compressed tar archive of small files in one folder, readable only by its owner.

use std::{
    fs::OpenOptions,
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::Path,
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result};
use flate2::{Compression, write::GzEncoder};
use tar::{Builder, Header};

use crate::frame::BadInput;

/// A tar archive that is being written.
pub(super) struct Archive {
    builder: Builder<GzEncoder<Box<dyn Write>>>,
    folder: String,
    now: u64,
}

impl Archive {
    /// Creates the archive file, which must not exist yet; `-` means standard output. `node`: the
    /// node's name, for the folder's name.
    pub(super) fn create(path: &Path, node: &str) -> Result<Self> {
        let out: Box<dyn Write> = match path.to_str() {
            Some("-") => Box::new(io::stdout()),
            _ => {
                let mut options = OpenOptions::new();
                let file = options.write(true).create_new(true).mode(0o600).open(path);
                Box::new(file.map_err(|error| {
                    BadInput(format!("cannot make {}: {error}", path.display()))
                })?)
            }
        };
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        Ok(Self {
            builder: Builder::new(GzEncoder::new(out, Compression::default())),
            folder: format!("portolan-{node}-{}", now.as_secs()),
            now: now.as_secs(),
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

    /// Writes what a tar archive needs at its end, and everything still in buffers.
    pub(super) fn finish(self) -> Result<()> {
        let ended = self.builder.into_inner().and_then(GzEncoder::finish);
        ended
            .and_then(|mut out| out.flush())
            .context("write the archive's end")
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, io::Read, os::unix::fs::PermissionsExt};

    use flate2::read::GzDecoder;

    use super::*;

    #[test]
    fn a_dump_archive_has_its_files_and_overwrites_no_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("dump.tar.gz");
        let mut archive = Archive::create(&path, "node-a").expect("a file");
        archive.add("a.txt", b"one").expect("added");
        archive.add("agent/b.txt", b"two").expect("added");
        archive.finish().expect("written");
        let mode = fs::metadata(&path).expect("the file").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let mut archive = tar::Archive::new(GzDecoder::new(fs::File::open(&path).expect("it")));
        let files = archive.entries().expect("entries").map(|entry| {
            let mut entry = entry.expect("an entry");
            let mut text = String::new();
            entry.read_to_string(&mut text).expect("text");
            let path = entry.path().expect("a path").into_owned();
            (path.iter().skip(1).collect::<std::path::PathBuf>(), text)
        });
        let expected = [("a.txt", "one"), ("agent/b.txt", "two")];
        let expected = expected.map(|(path, text)| (path.into(), text.to_owned()));
        assert_eq!(files.collect::<Vec<_>>(), expected);
        let error = Archive::create(&path, "node-a").err().expect("it is there");
        assert!(error.is::<BadInput>(), "{error}");
    }
}
