// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The BPF file system: mounts it, removes what killed runs left there, names pin directories.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
};

use anyhow::{Context, Result};
use nix::{
    mount::{MsFlags, mount},
    sys::statfs::{self, statfs},
};

use super::netns::check_privilege;

const BPFFS: &str = "/sys/fs/bpf";
/// Prefix of the names of all files that a run creates outside its namespaces, before its id.
pub(super) const PREFIX: &str = "portolan-lab-";

/// A directory for an agent's pins. It exists once an object is pinned there. Dropping this removes
/// the directory with its content.
pub struct PinDir(PathBuf);

impl PinDir {
    /// Returns a path that no other pin directory has.
    pub fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        Self(Path::new(BPFFS).join(format!("{PREFIX}{}-{number}", std::process::id())))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Default for PinDir {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for PinDir {
    fn drop(&mut self) {
        remove(&self.0);
    }
}

fn remove(folder: &Path) {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            eprintln!("remove {}: {error}; remove it by hand", folder.display());
        }
        _ => {}
    }
}

/// Mounts bpffs unless it is. Removes what killed runs left there and in the temporary folder.
pub fn prepare() -> Result<()> {
    check_privilege()?;
    let mounted = statfs(BPFFS).is_ok_and(|found| found.filesystem_type() == statfs::BPF_FS_MAGIC);
    if !mounted {
        let (kind, flags) = (Some("bpf"), MsFlags::empty());
        let mounted = mount(kind, BPFFS, kind, flags, None::<&str>);
        let attempt = || format!("mount bpffs on {BPFFS}: run as root on a kernel with BPF");
        mounted.with_context(attempt)?;
    }
    remove_orphans(Path::new(BPFFS))?;
    remove_orphans(&std::env::temp_dir())
}

/// Removes the entries of a folder whose names have [`PREFIX`] and the id of an ended process.
fn remove_orphans(folder: &Path) -> Result<()> {
    let entries = fs::read_dir(folder).with_context(|| format!("read {}", folder.display()))?;
    for entry in entries.flatten() {
        let name = entry.file_name();
        let rest = name.to_str().and_then(|name| name.strip_prefix(PREFIX));
        let owner = rest.and_then(|rest| rest.split('-').next()?.parse::<u32>().ok());
        if owner.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            remove(&entry.path());
        }
    }
    Ok(())
}
