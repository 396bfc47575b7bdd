// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The pin directory: checks where it may be, and knows the paths in it. Used by all rooms above.

use std::{
    fs,
    path::{Path, PathBuf},
};

use nix::sys::statfs::{BPF_FS_MAGIC, statfs};
use proxy_common::maps::LAYOUT_VERSION;

use crate::datapath::error::DatapathError;

/// The directory for maps of this layout version.
pub fn layout_dir(pin_dir: &Path) -> PathBuf {
    pin_dir.join(format!("v{LAYOUT_VERSION}"))
}

/// The path of a map's pin.
pub fn map_path(pin_dir: &Path, map: &str) -> PathBuf {
    layout_dir(pin_dir).join(map)
}

/// The directory for links.
pub fn links_dir(pin_dir: &Path) -> PathBuf {
    layout_dir(pin_dir).join("links")
}

/// Whether a path lies on a BPF file system.
pub(crate) fn is_bpffs(path: &Path) -> nix::Result<bool> {
    Ok(statfs(path)?.filesystem_type() == BPF_FS_MAGIC)
}

/// Makes the pin directory; fails unless it will be on a BPF file system.
pub fn create_dirs(pin_dir: &Path) -> Result<(), DatapathError> {
    let unusable = |reason: &str, source| DatapathError::PinDirectory {
        path: pin_dir.into(),
        reason: reason.into(),
        source,
    };
    if !pin_dir.is_absolute() {
        return Err(unusable("it must be an absolute path", None));
    }
    let existing = pin_dir
        .ancestors()
        .find(|path| path.exists())
        .unwrap_or(Path::new("/"));
    if !is_bpffs(existing).unwrap_or(false) {
        return Err(DatapathError::NoBpffs {
            path: pin_dir.into(),
            mount_point: mount_point(pin_dir),
        });
    }
    let below = pin_dir.strip_prefix(existing).unwrap_or(pin_dir);
    if below.to_string_lossy().contains('.') {
        return Err(unusable(
            "a BPF file system does not allow dots in names; choose another --pin-dir",
            None,
        ));
    }
    fs::create_dir_all(links_dir(pin_dir)).map_err(|error| {
        unusable(
            "it cannot be created (is a part of the path a file?)",
            Some(error),
        )
    })
}

/// The mount point to suggest for a BPF file system that holds the directory.
fn mount_point(pin_dir: &Path) -> PathBuf {
    let usual = Path::new("/sys/fs/bpf");
    if pin_dir.starts_with(usual) {
        return usual.into();
    }
    pin_dir.into()
}
