// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Finds the programs that tests call, with their libraries: this machine's own, or, for another
//! architecture, those in Debian's packages for it. Used by `initramfs`.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

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

    /// Adds the libraries that a program is linked with, and its dynamic loader, to the archive.
    pub(super) fn add_libraries(&self, archive: &mut Archive, program: &Path) -> Result<()> {
        match &self.root {
            None => add_own(archive, program),
            Some(root) => self.add_foreign(archive, program, root),
        }
    }

    /// Does so for another architecture by the ELF file's names: ldd would run the program.
    fn add_foreign(&self, archive: &mut Archive, program: &Path, root: &Path) -> Result<()> {
        let mut command = command::of("readelf", "--wide --dynamic --program-headers");
        let text = command::output(command.arg(program), "list libraries")?;
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
            self.add_foreign(archive, &library, root)?;
        }
        Ok(())
    }
}

fn add_own(archive: &mut Archive, program: &Path) -> Result<()> {
    let mut command = Command::new("ldd");
    command.arg(program);
    // ldd fails for a program that is not linked with libraries.
    let text = command::output(&mut command, "list libraries").unwrap_or_default();
    for library in libraries(&text) {
        if !archive.has(library) {
            archive.copy(Path::new(library), library)?;
        }
    }
    Ok(())
}

/// Returns the paths of libraries in the output of ldd.
fn libraries(text: &str) -> impl Iterator<Item = &str> {
    text.lines()
        .filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')))
}

/// Returns the dynamic loader and the libraries in the output of readelf.
fn needed(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter_map(|line| {
        let is_wanted = line.contains("(NEEDED)") || line.contains("program interpreter");
        let (_, name) = line.rsplit_once([':', '['])?;
        is_wanted.then(|| name.trim().trim_end_matches(']'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_and_the_loader_are_read_from_ldd() {
        let text = "\tlinux-vdso.so.1 (0x1)\n\tlibc.so.6 => /lib/libc.so.6 (0x2)\n\t/lib64/ld.so.2 (0x3)\n";
        let found: Vec<_> = libraries(text).collect();
        assert_eq!(found, ["/lib/libc.so.6", "/lib64/ld.so.2"]);
    }

    #[test]
    fn libraries_and_the_loader_are_read_from_readelf() {
        let text = "Elf file type is DYN\n      [Requesting program interpreter: /lib/ld-linux-aarch64.so.1]\n\
                    0x1 (NEEDED)             Shared library: [libmnl.so.0]\n 0xe (SONAME)  Library soname: [x.so]\n";
        let found: Vec<_> = needed(text).collect();
        assert_eq!(found, ["/lib/ld-linux-aarch64.so.1", "libmnl.so.0"]);
    }
}
