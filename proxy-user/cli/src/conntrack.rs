// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Compares the node's nf_conntrack parameters with the settings. Used by `init`, which sets the
//! parameters, and by `check`.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use config::Conntrack;

const PARAMETERS: &str = "/proc/sys/net/netfilter";
const HASH_SIZE: &str = "/sys/module/nf_conntrack/parameters/hashsize";

/// A parameter of nf_conntrack whose value differs from the settings.
pub(super) struct Due {
    pub(super) now: u32,
    pub(super) wanted: u32,
    file: PathBuf,
}

impl Due {
    pub(super) fn set(&self) -> io::Result<()> {
        fs::write(&self.file, self.wanted.to_string())
    }
}

/// Returns whether the kernel has nf_conntrack and this network namespace has its parameters.
pub(super) fn is_loaded() -> bool {
    Path::new(PARAMETERS).join("nf_conntrack_count").exists()
}

/// Returns the parameters that differ from the settings, or cannot be read, each with its name.
pub(super) fn due(
    conntrack: &Conntrack,
    processors: u32,
) -> impl Iterator<Item = (&'static str, io::Result<Due>)> {
    let files = conntrack
        .parameters(processors)
        .into_iter()
        .map(|(name, wanted)| (name, Path::new(PARAMETERS).join(name), wanted, false));
    // KUBE: the hash table has a bucket for four connections. More buckets than that do no harm.
    let max = conntrack.max(processors).into_iter();
    let table = max.map(|max| ("its hash table", HASH_SIZE.into(), max / 4, true));
    files.chain(table).filter_map(|(name, file, wanted, more)| {
        let is_due = |now| if more { now < wanted } else { now != wanted };
        match read(&file) {
            Ok(now) if is_due(now) => Some((name, Ok(Due { now, wanted, file }))),
            Ok(_) => None,
            Err(error) => Some((name, Err(error))),
        }
    })
}

fn read(file: &Path) -> io::Result<u32> {
    let text = fs::read_to_string(file)?;
    text.trim().parse().map_err(io::Error::other)
}
