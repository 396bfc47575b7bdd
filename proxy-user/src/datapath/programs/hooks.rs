// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Attaches the socket hooks to one cgroup, by pinned links that outlive the agent and are replaced in place. Used by
//! `Datapath`.

use std::{
    fs::{self, File},
    io,
    os::{fd::AsFd, unix::fs::MetadataExt},
    path::{Path, PathBuf},
};

use super::{entry_points::HOOKS, load::Programs};
use crate::datapath::{
    error::DatapathError,
    maps::pins::links_of,
    sys::{attach_cgroup, get_pinned, link_info, pin, replace},
};

/// Attaches the hooks to a cgroup, or replaces attached ones. One that the kernel refuses is left out, and with it those that
/// need it.
pub(crate) fn attach_hooks(
    programs: &Programs,
    home: &Path,
    cgroup: &Path,
) -> Result<(), DatapathError> {
    let failed = |source| DatapathError::Cgroup {
        path: cgroup.into(),
        source,
    };
    let directory = File::open(cgroup).map_err(failed)?;
    // A cgroup's id is its inode's number.
    let id = directory.metadata().map_err(failed)?.ino();
    for hook in HOOKS {
        let Some(program) = programs.fd(hook.program) else {
            continue;
        };
        if hook.needs.iter().any(|name| programs.fd(name).is_none()) {
            continue;
        }
        let path = links_of(home).join(format!("cgroup-{}", hook.program));
        if let Ok(link) = get_pinned(&path, false)
            && link_info(&link).is_ok_and(|info| info.is_cgroup(id, hook.attach_type))
        {
            replace(link.as_fd(), program).map_err(failed)?;
            continue;
        }
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
            _ => {}
        }
        let link = attach_cgroup(program, directory.as_fd(), hook.attach_type).map_err(failed)?;
        pin(&link, &path).map_err(failed)?;
    }
    Ok(())
}

/// The mount point of the cgroup2 hierarchy, by /proc/self/mounts.
pub fn cgroup_root() -> io::Result<Option<PathBuf>> {
    let mounts = fs::read_to_string("/proc/self/mounts")?;
    Ok(mounted_cgroup2(&mounts))
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
