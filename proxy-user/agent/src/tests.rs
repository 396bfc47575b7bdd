// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a start that fails leaves behind.

use config::Config;
use control::{change::Batch, warnings::Warnings};
use source::{ObjectSource, SourceError};
use tokio::sync::mpsc;

/// A source whose settings name nothing.
struct Nothing;

impl ObjectSource for Nothing {
    async fn check(&self) -> Result<(), SourceError> {
        Err(SourceError::NoAddress)
    }
    async fn run(self, _: mpsc::Sender<Batch>) -> Result<(), SourceError> {
        Ok(())
    }
}

#[tokio::test]
async fn an_agent_whose_source_cannot_begin_ends_before_it_makes_maps() {
    let folder = tempfile::tempdir().expect("a folder");
    let config = Config {
        pin_directory: folder.path().join("pins"),
        ..Config::default()
    };
    let pins = config.pin_directory.clone();
    let ended = super::run(config, None, "node-a", Nothing, Warnings::default()).await;
    // Without a BPF file system, making maps fails, too, and says so.
    let error = ended.expect_err("it has no source");
    assert!(
        matches!(error.downcast_ref(), Some(SourceError::NoAddress)),
        "{error:#}"
    );
    assert!(!pins.exists());
}
