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

use linux::{LinkInfo, attach_cgroup, link_info, program_id};

use super::{
    load::Programs,
    pin::{is_pinned, keep_or_attach},
};
use crate::{Datapath, error::DatapathError, maps::pins::links_of};

/// A socket hook: the name of our program for it, and the number by which the kernel knows the
/// hook.
#[derive(Clone, Copy)]
pub(super) struct Hook {
    pub(super) program: &'static str,
    /// The hooks that must be attached before this one, because they undo what it changes.
    pub(super) needs: &'static [&'static str],
    /// The hook's number in the kernel's `enum bpf_attach_type`.
    pub(super) attach_type: u32,
}

const fn hook(program: &'static str, attach_type: u32, needs: &'static [&'static str]) -> Hook {
    Hook {
        program,
        needs,
        attach_type,
    }
}

/// The socket hooks in the order of attaching: hooks that restore addresses come before hooks that
/// replace them, and hooks that remove entries before hooks that create them.
pub(super) const HOOKS: [Hook; 9] = [
    hook("release", 34, &[]),
    hook("receive_v4", 19, &[]),
    hook("receive_v6", 20, &[]),
    hook("peer_name_v4", 29, &[]),
    hook("peer_name_v6", 30, &[]),
    // An IPv6 socket sends to IPv4-mapped addresses through `send_v4`, and receives through
    // `receive_v6`.
    hook("send_v4", 14, &["release", "receive_v4", "receive_v6"]),
    hook("send_v6", 15, &["release", "receive_v6"]),
    hook("connect_v4", 10, &["release", "receive_v4", "peer_name_v4"]),
    hook("connect_v6", 11, &["release", "receive_v6", "peer_name_v6"]),
];

/// The open links of the socket hooks, so that they outlive their pins. Key: the name of the
/// program.
#[derive(Debug, Default)]
pub(crate) struct HookLinks(HashMap<&'static str, OwnedFd>);

impl HookLinks {
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

impl Datapath {
    /// Attaches our programs to the socket hooks of a cgroup, or replaces programs of an earlier
    /// call or run. Skips a program that the kernel refuses, and with it the hooks that need it.
    /// Idempotent.
    pub fn attach_hooks(&mut self, cgroup: &Path) -> Result<(), DatapathError> {
        let failed = |source| DatapathError::Cgroup {
            path: cgroup.into(),
            source,
        };
        let (directory, id) = open(cgroup).map_err(failed)?;
        let directory = directory.as_fd();
        for (hook, program) in wanted(&self.programs) {
            let path = path_of(&self.home, hook.program);
            let is_it = |info: &LinkInfo| Ok(info.is_cgroup(id, hook.attach_type));
            let attach = || attach_cgroup(program, directory, hook.attach_type);
            keep_or_attach(
                &mut self.hooks.0,
                hook.program,
                &path,
                program,
                is_it,
                attach,
            )
            .map_err(failed)?;
        }
        Ok(())
    }
    /// Returns the names of the programs that can be attached to socket hooks on this kernel.
    pub fn wanted_hooks(&self) -> Vec<&'static str> {
        let wanted = wanted(&self.programs);
        wanted.map(|(hook, _)| hook.program).collect()
    }
    /// Returns two numbers: how many socket hooks can be attached on this kernel, and how many are
    /// attached.
    pub fn hook_counts(&self) -> (usize, usize) {
        (wanted(&self.programs).count(), self.hooks.0.len())
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

pub(super) fn path_of(home: &Path, program: &str) -> PathBuf {
    links_of(home).join(format!("cgroup-{program}"))
}

/// Finds the mount point of the cgroup2 hierarchy in /proc/self/mounts; `None` if it is not
/// mounted.
pub fn cgroup_root() -> io::Result<Option<PathBuf>> {
    let mounts = fs::read_to_string("/proc/self/mounts")?;
    Ok(cgroup2_mounts(&mounts).next())
}

/// True if there are cgroups beside or above this one, whose sockets its hooks do not see. The
/// kernel's own root has no `cgroup.type`; what a cgroup namespace shows as its root has one.
pub fn is_below_root(cgroup: &Path) -> bool {
    cgroup.join("cgroup.type").exists()
}

/// Returns the mount points of the cgroup2 hierarchy in a text like /proc/self/mounts.
pub(crate) fn cgroup2_mounts(mounts: &str) -> impl Iterator<Item = PathBuf> {
    mounts.lines().filter_map(|line| {
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
        let found = cgroup2_mounts(mounts).collect::<Vec<_>>();
        assert_eq!(found, [Path::new("/sys/fs/cgroup/unified")]);
        assert_eq!(cgroup2_mounts("proc /proc proc rw 0 0\n").next(), None);
    }
}
