// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A pin directory of a benchmark's own. Included by `apply` and `planner`.

use std::{fs, path::PathBuf};

use portolan::datapath::{Datapath, Options};

/// Goes with everything in it when it is dropped.
pub(crate) struct PinDir(PathBuf);

impl PinDir {
    pub(crate) fn new() -> Self {
        let name = format!("/sys/fs/bpf/portolan-bench-{}", std::process::id());
        Self(name.into())
    }
    /// Loads the programs over what is pinned there.
    pub(crate) fn open(&self) -> Datapath {
        // Room for 50 000 services, each with a cluster IP and its guard.
        let options = Options {
            pin_dir: self.0.clone(),
            ..Options::default()
        };
        Datapath::open(&options)
            .unwrap_or_else(|error| panic!("open the datapath: {error}; the bench needs root"))
    }
}

impl Drop for PinDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
