// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `portolan mount-bpffs`: mounts a BPF file system. The DaemonSet's init container runs it, so
//! that the agent does not need the privilege to mount.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use datapath::maps::pins::is_bpffs;
use nix::mount::{MsFlags, mount};

/// Where to mount.
#[derive(clap::Args, Clone, Debug)]
pub struct BpffsArgs {
    /// Directory to mount the BPF file system on.
    #[arg(default_value = "/sys/fs/bpf")]
    pub directory: PathBuf,
}

/// Mounts a BPF file system at the given directory, unless one is mounted there.
pub(super) fn run(args: &BpffsArgs) -> Result<()> {
    let directory = &args.directory;
    let mounted = is_bpffs(directory)
        .with_context(|| format!("read the file system type of {}", directory.display()))?;
    if mounted {
        println!("{} is already a BPF file system", directory.display());
        return Ok(());
    }
    mount_at(directory)?;
    println!("mounted a BPF file system on {}", directory.display());
    Ok(())
}

/// Mounts a BPF file system at this directory.
pub(super) fn mount_at(directory: &Path) -> Result<()> {
    mount(Some("bpffs"), directory, Some("bpf"), MsFlags::empty(), None::<&str>).with_context(|| {
        format!(
            "mount a BPF file system on {}; this needs CAP_SYS_ADMIN and a kernel with CONFIG_BPF_SYSCALL",
            directory.display()
        )
    })
}
