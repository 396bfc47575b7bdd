// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Finds the program portolan for benchmarks and the demo. The tests of portolan's own package pass
//! the program that cargo built for them.

use std::{
    env,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};

/// Returns the given program, else target/PROFILE/portolan, searched from
/// target/PROFILE/{deps,examples}/PROGRAM.
pub fn find(given: Option<&Path>) -> Result<PathBuf> {
    if let Some(given) = given {
        return Ok(given.to_owned());
    }
    let own = env::current_exe().context("find out where this program lies")?;
    let folder = own.parent().and_then(Path::parent).unwrap_or(&own);
    let binary = folder.join("portolan");
    if !binary.is_file() {
        bail!(
            "no agent at {}: build it (cargo build --package proxy-user, --release for benchmarks) or name it with --binary",
            binary.display()
        );
    }
    Ok(binary)
}
