// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `portolan cleanup`: removes every trace of portolan from this node.

use std::path::Path;

use anyhow::Result;

use super::Pins;
use crate::datapath::cleanup;

/// What to clean up.
#[derive(clap::Args, Clone, Debug)]
pub struct CleanupArgs {
    #[command(flatten)]
    pub pins: Pins,
    /// Go on although an agent runs; it will lose its maps.
    #[arg(long)]
    pub force: bool,
}

/// Removes attachments and pins, and says which.
pub(super) fn run(args: &CleanupArgs) -> Result<()> {
    remove(&args.pins.pin_dir, args.force)
}

pub(super) fn remove(pin_dir: &Path, force: bool) -> Result<()> {
    let removed = cleanup::cleanup(pin_dir, force)?;
    if removed.is_empty() {
        println!(
            "nothing to remove: no pins in {}, no filters",
            pin_dir.display()
        );
    }
    for line in removed {
        println!("removed {line}");
    }
    Ok(())
}
