// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `portolan init`: does what needs more privileges than the agent has. It mounts a BPF file
//! system, and sets the node's nf_conntrack parameters as kube-proxy does, and what `forwarding:
//! auto` needs besides. The DaemonSet's init container runs it. `portolan mount-bpffs` only mounts.

use std::path::PathBuf;

use anyhow::{Context, Result};
use config::{Config, RawConfig, processors};
use control::causes::chain;
use datapath::maps::pins::is_bpffs;
use nix::mount::{MsFlags, mount};

use super::{conntrack, frame::BadInput};

/// Where to mount.
#[derive(clap::Args, Clone, Debug)]
pub struct BpffsArgs {
    /// Directory to mount the BPF file system on.
    #[arg(default_value = "/sys/fs/bpf")]
    pub directory: PathBuf,
}

/// Arguments of `portolan init`.
#[derive(clap::Args, Clone, Debug)]
pub struct InitArgs {
    #[command(flatten)]
    pub bpffs: BpffsArgs,
    /// The agent's configuration file; without one, the defaults hold.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
}

/// Prepares the node. An nf_conntrack parameter that cannot be set is reported, but is no error.
pub(super) fn run(args: &InitArgs) -> Result<()> {
    mount_bpffs(&args.bpffs)?;
    let read = || match &args.config {
        Some(file) => RawConfig::read(file)?.check(),
        None => RawConfig::default().check(),
    };
    let config = read().map_err(|error| BadInput(chain(&error)))?;
    set(&config);
    Ok(())
}

fn set(config: &Config) {
    // A question about a connection has the kernel load nf_conntrack, if it is a module: a CNI
    // would load it later, with other values.
    if !conntrack::is_loaded() {
        _ = linux::tracked(|_| ());
    }
    if !conntrack::is_loaded() {
        println!("nf_conntrack is not loaded: nothing to set");
        return;
    }
    let conntrack = config.node_conntrack();
    let has = |parameters: &[(&str, u32)], name| parameters.iter().any(|(one, _)| *one == name);
    let [ours, kube_proxys] =
        [&conntrack, &config.conntrack].map(|parameters| parameters.parameters(processors()));
    for (name, due) in conntrack::due(&conntrack, processors()) {
        // What kube-proxy sets as well stays.
        if let Ok(due) = &due
            && has(&ours, name)
            && !has(&kube_proxys, name)
            && let Err(error) = conntrack::note(&config.pin_directory, name, due)
        {
            let now = due.now;
            eprintln!("nf_conntrack: that {name} was {now} cannot be noted: {error}");
        }
        let done = due.and_then(|due| due.set().map(|()| due.wanted));
        match done {
            Ok(value) => println!("nf_conntrack: {name} is {value} now"),
            Err(error) => eprintln!("nf_conntrack: {name} cannot be set: {error}"),
        }
    }
}

/// Mounts a BPF file system at the given directory, unless one is mounted there.
pub(super) fn mount_bpffs(args: &BpffsArgs) -> Result<()> {
    let (directory, place) = (&args.directory, args.directory.display());
    let mounted = is_bpffs(directory);
    if mounted.with_context(|| format!("read the file system type of {place}"))? {
        println!("{place} is already a BPF file system");
        return Ok(());
    }
    let flags = MsFlags::empty();
    let done = mount(Some("bpffs"), directory, Some("bpf"), flags, None::<&str>);
    done.with_context(|| {
        format!("mount a BPF file system on {place}; this needs CAP_SYS_ADMIN and a kernel with CONFIG_BPF_SYSCALL")
    })?;
    println!("mounted a BPF file system on {place}");
    Ok(())
}
