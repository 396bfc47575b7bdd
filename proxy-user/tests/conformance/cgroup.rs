// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A cgroup per case, so that socket hooks attached to it see that case's pods and nothing else. Used
//! by `run` where pods' sockets are balanced, too.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
};

use anyhow::{Context, Result};
use nix::unistd::gettid;

/// A threaded cgroup with the calling thread in it; sockets made by the thread belong to it. Dropping
/// it takes the thread out and removes it.
pub(crate) struct Cgroup {
    path: PathBuf,
    home: PathBuf,
}

impl Cgroup {
    /// Makes a cgroup below the process's own, and moves the calling thread there.
    pub(crate) fn join() -> Result<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let home = own_cgroup()?;
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = home.join(format!("portolan-lab-{}-{number}", std::process::id()));
        fs::create_dir(&path).with_context(|| format!("make cgroup {}", path.display()))?;
        let cgroup = Self { path, home };
        write(&cgroup.path.join("cgroup.type"), "threaded")?;
        write(&cgroup.path.join("cgroup.threads"), &gettid().to_string())?;
        Ok(cgroup)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let left = write(&self.home.join("cgroup.threads"), &gettid().to_string())
            .and_then(|()| fs::remove_dir(&self.path).context("remove it"));
        if let Err(error) = left {
            eprintln!(
                "cgroup {}: {error:#}; remove it by hand",
                self.path.display()
            );
        }
    }
}

fn write(file: &Path, text: &str) -> Result<()> {
    fs::write(file, text).with_context(|| format!("write {text} to {}", file.display()))
}

/// Where this process is in the cgroup2 hierarchy.
fn own_cgroup() -> Result<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mounts").context("read /proc/self/mounts")?;
    let root = mounts
        .lines()
        .map(|line| line.split(' ').collect::<Vec<_>>())
        .find(|fields| fields.get(2) == Some(&"cgroup2"))
        .and_then(|fields| fields.get(1).map(|path| PathBuf::from(*path)))
        .context("no cgroup2 is mounted: socket hooks need one")?;
    let own = fs::read_to_string("/proc/self/cgroup").context("read /proc/self/cgroup")?;
    let path = own
        .lines()
        .find_map(|line| line.strip_prefix("0::/"))
        .unwrap_or_default();
    Ok(root.join(path))
}
