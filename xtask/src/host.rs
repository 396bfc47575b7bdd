// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Checks and prepares the machine for a command: root, bpffs, programs in the PATH.

use std::{
    env, fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use anyhow::{Result, ensure};
use nix::unistd::Uid;

use crate::command;

pub(crate) fn is_root() -> bool {
    Uid::effective().is_root()
}

/// Fails unless this process is root. The error begins with `what` and ends with `instead`.
pub(crate) fn require_root(what: &str, instead: &str) -> Result<()> {
    ensure!(
        is_root(),
        "{what} loads BPF programs and makes network namespaces: run it as root{instead}"
    );
    Ok(())
}

/// Mounts the BPF file system where the agent pins its maps, unless it is mounted.
pub(crate) fn ensure_bpffs() -> Result<()> {
    const SCRIPT: &str =
        "findmnt --types bpf --mountpoint /sys/fs/bpf >/dev/null || mount -t bpf bpffs /sys/fs/bpf";
    let what =
        "mount bpffs at /sys/fs/bpf (needs root, sysfs and a kernel with CONFIG_BPF_SYSCALL)";
    command::check(command::of("sh", "-c").arg(SCRIPT), what)
}

/// Searches for a program in the PATH, then in folders such as /usr/sbin that a user's PATH may
/// lack. Returns a full path unchanged, and None if there is no such program.
pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(PathBuf::from))
        .map(|folder| folder.join(name))
        .find(|program| is_executable(program))
}

pub(crate) fn is_executable(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}
