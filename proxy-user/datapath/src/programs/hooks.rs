// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Attaches our programs to the socket hooks of one cgroup by pinned links. The links outlive the
//! agent, and their program can be replaced. Used by `Datapath`.

use std::{
    collections::HashMap,
    fs::{self, File},
    io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::fs::MetadataExt,
    },
    path::{Path, PathBuf},
};

use linux::{attach_cgroup, get_pinned, link_info, program_id, replace};

use super::{
    entry_points::{HOOKS, Hook},
    load::Programs,
    pin::{is_pinned, pin_again},
};
use crate::{error::DatapathError, maps::pins::links_of};

/// The open links of the socket hooks, so that they outlive their pins. Key: the name of the
/// program.
#[derive(Debug, Default)]
pub(crate) struct HookLinks(HashMap<&'static str, OwnedFd>);

impl HookLinks {
    /// Attaches the programs to a cgroup, or replaces programs of an earlier call or run. Skips a
    /// program that the kernel refuses, and with it the hooks that need it.
    pub(crate) fn attach(
        &mut self,
        programs: &Programs,
        home: &Path,
        cgroup: &Path,
    ) -> Result<(), DatapathError> {
        let failed = |source| DatapathError::Cgroup {
            path: cgroup.into(),
            source,
        };
        let (directory, id) = open(cgroup).map_err(failed)?;
        for (hook, program) in wanted(programs) {
            self.attach_one(home, &directory, id, hook, program)
                .map_err(failed)?;
        }
        Ok(())
    }

    fn attach_one(
        &mut self,
        home: &Path,
        directory: &File,
        id: u64,
        hook: Hook,
        program: BorrowedFd<'_>,
    ) -> io::Result<()> {
        let path = path_of(home, hook.program);
        let held = self.0.remove(hook.program);
        for link in held.into_iter().chain(get_pinned(&path, false).ok()) {
            if link_info(&link).is_ok_and(|info| info.is_cgroup(id, hook.attach_type)) {
                // Kept open in any case: even without a pin the link works as long as the agent
                // runs.
                let link = self.0.entry(hook.program).insert_entry(link);
                return replace(link.get().as_fd(), program)
                    .and_then(|()| pin_again(link.get(), &path));
            }
        }
        let link = attach_cgroup(program, directory.as_fd(), hook.attach_type)?;
        let link = self.0.entry(hook.program).insert_entry(link);
        pin_again(link.get(), &path)
    }

    /// Returns the names of the programs that can be attached to socket hooks on this kernel.
    pub(crate) fn wanted(programs: &Programs) -> Vec<&'static str> {
        wanted(programs).map(|(hook, _)| hook.program).collect()
    }

    /// Returns two numbers: how many socket hooks can be attached on this kernel, and how many are
    /// attached.
    pub(crate) fn counts(&self, programs: &Programs) -> (usize, usize) {
        (wanted(programs).count(), self.0.len())
    }

    /// Returns the faults of our attachments to a cgroup, each as a text for the operator. A quick
    /// check skips the pins of the links.
    pub(crate) fn damage(
        &self,
        programs: &Programs,
        home: &Path,
        cgroup: &Path,
        quick: bool,
    ) -> io::Result<Vec<String>> {
        let (_, id) = open(cgroup)?;
        let mut found = Vec::new();
        let mut unpinned = Vec::new();
        for (hook, program) in wanted(programs) {
            let name = hook.program;
            let Some(link) = self.0.get(name) else {
                found.push(format!("{name} was not attached"));
                continue;
            };
            let info = link_info(link)?;
            if !info.is_cgroup(id, hook.attach_type) {
                found.push(format!("{name} was detached"));
            } else if info.program != program_id(program)? {
                found.push(format!("{name} was replaced by another program"));
            } else if !quick && !is_pinned(link, &path_of(home, name)) {
                unpinned.push(name);
            }
        }
        if !unpinned.is_empty() {
            found.push(format!("without a pin: {}", unpinned.join(", ")));
        }
        Ok(found)
    }
}

/// Returns the hooks to attach, each with its program's descriptor. Leaves out those that lack a
/// program that they need.
fn wanted(programs: &Programs) -> impl Iterator<Item = (Hook, BorrowedFd<'_>)> {
    HOOKS.into_iter().filter_map(|hook| {
        let program = programs.fd(hook.program)?;
        let has_all = hook.needs.iter().all(|name| programs.fd(name).is_some());
        has_all.then_some((hook, program))
    })
}

/// Opens a cgroup's directory; returns it with the cgroup's id, which is the directory's inode
/// number.
fn open(cgroup: &Path) -> io::Result<(File, u64)> {
    let directory = File::open(cgroup)?;
    let id = directory.metadata()?.ino();
    Ok((directory, id))
}

/// Returns the path of the pin of a hook's link.
pub(super) fn path_of(home: &Path, program: &str) -> PathBuf {
    links_of(home).join(format!("cgroup-{program}"))
}

/// Finds the mount point of the cgroup2 hierarchy in /proc/self/mounts; `None` if it is not
/// mounted.
pub fn cgroup_root() -> io::Result<Option<PathBuf>> {
    let mounts = fs::read_to_string("/proc/self/mounts")?;
    Ok(mounted_cgroup2(&mounts))
}

/// True if there are cgroups beside or above this one, whose sockets its hooks do not see. The
/// kernel's own root has no `cgroup.type`; what a cgroup namespace shows as its root has one.
pub fn is_below_root(cgroup: &Path) -> bool {
    cgroup.join("cgroup.type").exists()
}

fn mounted_cgroup2(mounts: &str) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        let mut fields = line.split(' ').skip(1);
        let (path, kind) = (fields.next()?, fields.next()?);
        (kind == "cgroup2").then(|| path.into())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cgroup2_mount_is_found_beside_version_1() {
        let mounts = "tmpfs /sys/fs/cgroup tmpfs rw 0 0\n\
                      cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n\
                      cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";
        let found = mounted_cgroup2(mounts);
        assert_eq!(found.as_deref(), Some(Path::new("/sys/fs/cgroup/unified")));
        assert_eq!(mounted_cgroup2("proc /proc proc rw 0 0\n"), None);
    }
}
