// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Keeps the socket hooks attached to their cgroup, and the map of excepted cgroups up to date.
//! Called by `attachments`.

use std::{
    collections::HashSet,
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use control::{causes::chain, object::Warning};
use datapath::{Datapath, cgroup_root, is_below_root};
use linux::glob;

/// The cgroup that the socket hooks are attached to, and the excepted cgroups, whose sockets the
/// hooks ignore.
#[derive(Debug)]
pub struct SocketHooks {
    root: Option<PathBuf>,
    patterns: Vec<String>,
    /// The cgroup that the hooks are attached to; `None` before they are.
    attached: Option<PathBuf>,
    excepted: Option<HashSet<u64>>,
}

impl SocketHooks {
    pub(super) fn new(root: Option<PathBuf>, patterns: Vec<String>) -> Self {
        Self {
            root,
            patterns,
            attached: None,
            excepted: None,
        }
    }

    /// Attaches the hooks if they are not attached yet, and updates the excepted cgroups. Returns a
    /// warning if that fails, else nothing.
    pub(super) fn update(&mut self, datapath: &mut Datapath) -> Vec<Warning> {
        let fault = self.attach(datapath).err().map(|reason| Warning {
            object: "socket hooks".to_owned(),
            reason: format!(
                "{reason}; until it works the node's own processes reach no service, and pods are served on the packet path; it is tried again every second"
            ),
        });
        Vec::from_iter(fault)
    }

    fn attach(&mut self, datapath: &mut Datapath) -> Result<(), String> {
        let root = match &self.root {
            Some(root) => root.clone(),
            None => cgroup_root()
                .map_err(|error| format!("read /proc/self/mounts: {error}"))?
                .ok_or("no cgroup2 hierarchy is mounted: mount one with `mount -t cgroup2 none /sys/fs/cgroup`, or name it with --cgroup-root")?,
        };
        // The excepted cgroups are stored first, so that no excepted socket is translated.
        self.update_exceptions(datapath, &root)?;
        if self.attached.as_ref() != Some(&root) {
            datapath
                .attach_hooks(&root)
                .map_err(|error| chain(&error))?;
            self.attached = Some(root);
        }
        Ok(())
    }

    /// Returns a warning about each socket program that the kernel refuses to load.
    pub fn refused(datapath: &Datapath) -> impl Iterator<Item = Warning> {
        let refusals = datapath.refusals().iter();
        refusals.map(|refusal| Warning {
            object: format!("kernel program {}", refusal.program),
            reason: format!(
                "the kernel refuses it: {}; until then {}",
                refusal.reason,
                consequence(&refusal.program)
            ),
        })
    }

    /// Returns the cgroup that the hooks are attached to; `None` if they are not attached.
    pub(super) fn cgroup(&self) -> Option<&Path> {
        self.attached.as_deref()
    }

    /// Returns a warning if the hooks are at a cgroup that is not the kernel's root, unless it was
    /// named: a node may be a container.
    pub(super) fn narrowed(&self) -> Option<Warning> {
        let cgroup = self.attached.as_ref().filter(|_| self.root.is_none())?;
        is_below_root(cgroup).then(|| Warning {
            object: "socket hooks".to_owned(),
            reason: format!(
                "they are at {}, which is a cgroup namespace's root and not the node's: processes of the node outside of it reach no service, and pods outside of it are served on the packet path; run the agent in the node's own cgroup namespace, or mount the node's cgroup2 hierarchy and name it with --cgroup-root; if the node is a container itself, name this one",
                cgroup.display(),
            ),
        })
    }

    fn update_exceptions(&mut self, datapath: &mut Datapath, root: &Path) -> Result<(), String> {
        if self.patterns.is_empty() && self.excepted.is_some() {
            return Ok(());
        }
        let mut found = HashSet::new();
        if !self.patterns.is_empty() {
            collect(root, root, &self.patterns, &mut found)
                .map_err(|error| format!("look for excepted cgroups: {error}"))?;
        }
        if self.excepted.as_ref() != Some(&found) {
            datapath
                .set_socket_exceptions(&found)
                .map_err(|error| chain(&error))?;
            self.excepted = Some(found);
        }
        Ok(())
    }
}

/// Returns what does not work without the socket program with this name, as text for a warning.
fn consequence(program: &str) -> &'static str {
    match program {
        "ingress_l3" | "egress_l3" => "interfaces without a link layer are not served",
        "egress_loopback" => {
            "what policy drops of the node's own connections to itself is not dropped"
        }
        "expire_v4" | "expire_v6" => {
            "idle flows of that family are removed only to make room for new ones"
        }
        _ => {
            "the socket hooks that need it are not attached: pods are served on the packet path, and the node's own \
             processes may not reach services by that family and protocol"
        }
    }
}

/// Collects the ids of the cgroups below `directory` whose path matches a pattern. A match includes
/// the cgroups below it.
fn collect(
    root: &Path,
    directory: &Path,
    patterns: &[String],
    found: &mut HashSet<u64>,
) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if !path.is_dir() {
            continue;
        }
        let name = path.strip_prefix(root).unwrap_or(&path).to_string_lossy();
        if patterns.iter().any(|pattern| glob::matches(pattern, &name)) {
            // The cgroup may have been removed meanwhile.
            if let Ok(metadata) = fs::metadata(&path) {
                found.insert(metadata.ino());
            }
            continue;
        }
        match collect(root, &path, patterns, found) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hooks_below_the_kernels_root_are_a_warning_unless_that_cgroup_was_named() {
        let directory = tempfile::tempdir().expect("a directory");
        let hooks = |root| SocketHooks {
            attached: Some(directory.path().into()),
            ..SocketHooks::new(root, Vec::new())
        };
        assert_eq!(hooks(None).narrowed(), None, "the root has no type");
        fs::write(directory.path().join("cgroup.type"), "domain\n").expect("a file");
        assert!(hooks(None).narrowed().is_some());
        assert_eq!(hooks(Some(directory.path().into())).narrowed(), None);
    }

    #[test]
    fn only_the_topmost_matching_cgroup_is_collected() {
        let root = tempfile::tempdir().expect("a directory");
        for path in ["pods/a/one", "pods/b/two", "system"] {
            fs::create_dir_all(root.path().join(path)).expect("a directory");
        }
        let mut found = HashSet::new();
        let patterns = ["pods/b*".to_owned()];
        collect(root.path(), root.path(), &patterns, &mut found).expect("a walk");
        let id = fs::metadata(root.path().join("pods/b")).expect("metadata");
        assert_eq!(found, HashSet::from([id.ino()]));
    }
}
