// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `portolan init`: what needs more privilege than the agent has. Mounts a BPF file system, and sets the node's nf_conntrack as
//! kube-proxy does. The DaemonSet's init container runs it.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use anyhow::Result;

use super::{
    BadInput,
    bpffs::{self, BpffsArgs},
};
use crate::{
    causes::chain,
    config::{Conntrack, RawConfig, processors},
};

const PARAMETERS: &str = "/proc/sys/net/netfilter";
const HASH_SIZE: &str = "/sys/module/nf_conntrack/parameters/hashsize";

/// Arguments of `portolan init`.
#[derive(clap::Args, Clone, Debug)]
pub struct InitArgs {
    #[command(flatten)]
    pub bpffs: BpffsArgs,
    /// The agent's configuration file; without one, the defaults hold.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
}

/// Prepares the node. What cannot be set of nf_conntrack is named, and no reason not to serve.
pub(super) fn run(args: &InitArgs) -> Result<()> {
    bpffs::run(&args.bpffs)?;
    let read = || match &args.config {
        Some(file) => RawConfig::read(file)?.check(),
        None => RawConfig::default().check(),
    };
    let config = read().map_err(|error| BadInput(chain(&error)))?;
    set(&config.conntrack);
    Ok(())
}

fn set(conntrack: &Conntrack) {
    if !Path::new(PARAMETERS).join("nf_conntrack_count").exists() {
        println!("nf_conntrack is not loaded: nothing to set");
        return;
    }
    let processors = processors();
    for (name, value) in conntrack.parameters(processors) {
        say(
            name,
            replace(&Path::new(PARAMETERS).join(name), value, |now| now != value),
        );
    }
    if let Some(max) = conntrack.max(processors) {
        // KUBE: buckets of four connections.
        let wanted = max / 4;
        say(
            "its hash table",
            replace(Path::new(HASH_SIZE), wanted, |now| now < wanted),
        );
    }
}

fn say(what: &str, done: io::Result<Option<u32>>) {
    match done {
        Ok(Some(value)) => println!("nf_conntrack: {what} is {value} now"),
        Ok(None) => {}
        Err(error) => eprintln!("nf_conntrack: {what} cannot be set: {error}"),
    }
}

/// Writes the value into a file whose number is to be replaced. Returns it if it was.
fn replace(file: &Path, value: u32, is_due: impl Fn(u32) -> bool) -> io::Result<Option<u32>> {
    let text = fs::read_to_string(file)?;
    let now: u32 = text.trim().parse().map_err(io::Error::other)?;
    if !is_due(now) {
        return Ok(None);
    }
    fs::write(file, value.to_string())?;
    Ok(Some(value))
}
