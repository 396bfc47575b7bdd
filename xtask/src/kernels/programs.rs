// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Finds the programs that tests call, with their libraries: this machine's own, or, for another
//! architecture, those in Debian's packages for it. Used by `initramfs`.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::{apt::Apt, archive::Archive};
use crate::{arch::Arch, command, host};

/// Debian's packages that contain the programs.
const PACKAGES: &str = "bpftool busybox-static containernetworking-plugins iproute2 iputils-ping \
    nftables util-linux wireguard-tools";
/// Folders in which programs are searched.
const FOLDERS: [&str; 4] = ["usr/bin", "usr/sbin", "bin", "sbin"];
/// Folders in which libraries are searched; each architecture has its own folder below them.
const LIBRARIES: [&str; 2] = ["usr/lib", "lib"];

/// Finds programs and libraries for one architecture.
pub(super) struct Programs {
    arch: Arch,
    /// The root folder of another architecture's unpacked packages; None for this machine's own.
    root: Option<PathBuf>,
}

impl Programs {
    pub(super) fn of(arch: Arch) -> Result<Self> {
        let mut root = None;
        if arch != Arch::OWN {
            let packages: Vec<_> = PACKAGES.split(' ').collect();
            root = Some(Apt::open(arch)?.unpacked("programs", &packages, false)?);
        }
        Ok(Self { arch, root })
    }

    /// Returns the path of a program, given its name or full path. None if it is missing; the tests
    /// that call it then say so.
    pub(super) fn find(&self, name: &str) -> Option<PathBuf> {
        let Some(root) = &self.root else {
            return host::find_program(name);
        };
        let whole = name.strip_prefix('/').map(|path| root.join(path));
        let places = FOLDERS.iter().map(|folder| root.join(folder).join(name));
        whole.into_iter().chain(places).find(|path| path.is_file())
    }

    /// Returns the path that a found program has in the kernel's file system.
    pub(super) fn path(&self, program: &Path) -> String {
        let root = self.root.as_deref().unwrap_or(Path::new("/"));
        let path = program.strip_prefix(root).unwrap_or(program);
        Path::new("/").join(path).to_string_lossy().into_owned()
    }

    /// Adds the libraries that a program is linked with, and its dynamic loader, to the archive, by
    /// the names in its ELF file: ldd would run the program, which may be another processor's.
    pub(super) fn add_libraries(&self, archive: &mut Archive, program: &Path) -> Result<()> {
        let root = self.root.as_deref().unwrap_or(Path::new("/"));
        let mut command = command::of("readelf", "--wide --dynamic --program-headers");
        let command = command.arg(program).env("LC_ALL", "C");
        let text = command::output(command, "list libraries")?;
        for name in needed(&text) {
            // The dynamic loader has its full path in the ELF file, and must be at that path.
            let path = if name.starts_with('/') {
                name.to_owned()
            } else {
                format!("/lib/{}/{name}", self.arch.gnu())
            };
            if archive.has(&path) {
                continue;
            }
            let file = name.rsplit('/').next().unwrap_or(name);
            let place = |folder| root.join(folder).join(self.arch.gnu()).join(file);
            let library = LIBRARIES
                .map(place)
                .into_iter()
                .find(|place| place.exists());
            let library = library.with_context(|| format!("{} needs {file}", program.display()))?;
            archive.copy(&library, &path)?;
            self.add_libraries(archive, &library)?;
        }
        Ok(())
    }
}

/// Returns the dynamic loader and the libraries in the output of readelf.
fn needed(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter_map(|line| {
        let is_wanted = line.contains("(NEEDED)") || line.contains("program interpreter");
        let (_, name) = line.rsplit_once([':', '['])?;
        is_wanted.then(|| name.trim().trim_end_matches(']'))
    })
}
