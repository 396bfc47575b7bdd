// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A cgroup for each simulated node. The agent attaches its socket hooks to it, so that they see
//! only the processes and pods of this node. Used by everything that starts an agent.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
};

use anyhow::{Context, Result};
use nix::unistd::gettid;

/// A threaded cgroup below this process's own. Dropping it removes the cgroup.
pub struct Cgroup {
    path: PathBuf,
    home: PathBuf,
}

impl Cgroup {
    pub fn new() -> Result<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let home = own_cgroup()?;
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = home.join(format!("portolan-lab-{}-{number}", std::process::id()));
        Self::create(path, home)
    }

    /// Makes a cgroup named `name` below this one.
    pub fn below(&self, name: &str) -> Result<Self> {
        Self::create(self.path.join(name), self.home.clone())
    }

    fn create(path: PathBuf, home: PathBuf) -> Result<Self> {
        fs::create_dir(&path).with_context(|| format!("make cgroup {}", path.display()))?;
        let cgroup = Self { path, home };
        write(&cgroup.path.join("cgroup.type"), "threaded")?;
        Ok(cgroup)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Runs `work` while the thread is in the cgroup. A socket stays in the cgroup of its creation.
    pub fn inside<T>(&self, work: impl FnOnce() -> T) -> Result<T> {
        let threads = |cgroup: &Path| cgroup.join("cgroup.threads");
        let thread = gettid().to_string();
        write(&threads(&self.path), &thread)?;
        let result = work();
        write(&threads(&self.home), &thread)?;
        Ok(result)
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir(&self.path) {
            let path = self.path.display();
            eprintln!("remove cgroup {path}: {error}; remove it by hand");
        }
    }
}

fn write(file: &Path, text: &str) -> Result<()> {
    fs::write(file, text).with_context(|| format!("write {text} to {}", file.display()))
}

/// Returns the path of this process's cgroup.
fn own_cgroup() -> Result<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mounts").context("read /proc/self/mounts")?;
    let root = mounts.lines().find_map(|line| {
        let mut fields = line.split(' ').skip(1);
        let (path, kind) = (fields.next()?, fields.next()?);
        (kind == "cgroup2").then(|| PathBuf::from(path))
    });
    let root = root.context("no cgroup2 is mounted: socket hooks need one")?;
    let own = fs::read_to_string("/proc/self/cgroup").context("read /proc/self/cgroup")?;
    let path = own.lines().find_map(|line| line.strip_prefix("0::/"));
    Ok(root.join(path.unwrap_or_default()))
}
