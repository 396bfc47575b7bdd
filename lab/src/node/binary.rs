// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Finds the program portolan for benchmarks and the demo. The tests of the package proxy-user need
//! no search: cargo passes them the program that it built.

use std::{
    env,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};

/// Returns target/PROFILE/portolan. This program itself is expected at
/// target/PROFILE/{deps,examples}/PROGRAM.
pub fn find() -> Result<PathBuf> {
    let own = env::current_exe().context("find out where this program lies")?;
    let folder = own.parent().and_then(Path::parent).unwrap_or(&own);
    let binary = folder.join("portolan");
    ensure!(
        binary.is_file(),
        "no agent at {}: build it (cargo build --package proxy-user, --release for benchmarks)",
        binary.display()
    );
    Ok(binary)
}
