// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The node's nf_conntrack, as the settings ask for it and as it is. Used by `init`, which sets it,
//! and by `check`.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use config::Conntrack;

const PARAMETERS: &str = "/proc/sys/net/netfilter";
const HASH_SIZE: &str = "/sys/module/nf_conntrack/parameters/hashsize";

/// A parameter that differs from what the settings ask for.
pub(super) struct Due {
    pub(super) now: u32,
    pub(super) wanted: u32,
    file: PathBuf,
}

impl Due {
    /// Sets it.
    pub(super) fn set(&self) -> io::Result<()> {
        fs::write(&self.file, self.wanted.to_string())
    }
}

/// Whether the kernel has nf_conntrack, and this network namespace its parameters.
pub(super) fn is_loaded() -> bool {
    Path::new(PARAMETERS).join("nf_conntrack_count").exists()
}

/// The parameters that differ, by their names; an error for one that cannot be read.
pub(super) fn due(
    conntrack: &Conntrack,
    processors: u32,
) -> impl Iterator<Item = (&'static str, io::Result<Due>)> {
    let files = conntrack
        .parameters(processors)
        .into_iter()
        .map(|(name, wanted)| (name, Path::new(PARAMETERS).join(name), wanted, false));
    // KUBE: buckets of four connections. More of them than that harm nobody.
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
