// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One file of a manifest folder: whether it is a manifest, whether its writer has finished, and
//! its text. Called by `folder`.

use std::{
    collections::HashSet,
    fs, io,
    os::unix::fs::MetadataExt,
    path::Path,
    sync::Arc,
    time::{Duration, SystemTime},
};

/// The age below which a file may still be written to.
const SETTLE: Duration = Duration::from_millis(100);
/// The same age for a file that its writer has closed: another writer may have opened it since.
const SETTLE_FINISHED: Duration = Duration::from_millis(10);

/// What is known of the writers of the folder's files, by file name.
#[derive(Debug, Default)]
pub(super) struct Writers {
    /// Files that were written to and not closed since.
    pub(super) writing: HashSet<Arc<str>>,
    /// Files that were closed after writing, or renamed to their final name.
    pub(super) finished: HashSet<Arc<str>>,
}

/// Whether a file of this name is a manifest. Names that begin with a dot are not: such files
/// belong to editors and ConfigMap volumes.
pub(super) fn is_manifest(name: &str) -> bool {
    let extension = name.rsplit_once('.').map_or("", |(_, extension)| extension);
    !name.starts_with('.') && matches!(extension, "yaml" | "yml" | "json")
}

/// Identifies the content of a file without reading it; changes whenever the content changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Stamp {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl From<&fs::Metadata> for Stamp {
    fn from(metadata: &fs::Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

/// Whether nobody has written to the file recently. `finished`: its writer has closed it. A
/// modification time in the future says nothing and counts as settled.
pub(super) fn is_settled(metadata: &fs::Metadata, finished: bool) -> bool {
    let wanted = if finished { SETTLE_FINISHED } else { SETTLE };
    let age = |time: SystemTime| SystemTime::now().duration_since(time).ok();
    let age = metadata.modified().ok().and_then(age);
    age.is_none_or(|age| age >= wanted)
}

/// Returns the file's stamp and text; None if the file changed while it was read.
pub(super) fn read_whole(path: &Path) -> io::Result<Option<(Stamp, String)>> {
    let before = Stamp::from(&fs::metadata(path)?);
    let text = fs::read_to_string(path)?;
    let after = Stamp::from(&fs::metadata(path)?);
    let whole = before == after && after.size == text.len() as u64;
    Ok(whole.then_some((after, text)))
}
