// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An agent with another layout of its maps, built when a test asks for it.

use std::{
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};

use crate::world::BINARY;

/// The path of its binary.
pub(crate) fn binary() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let status = Command::new(cargo)
            // As xtask's other builds, so that dependencies are not built once more.
            .args([
                "build",
                "--locked",
                "--workspace",
                "--exclude",
                "proxy-ebpf",
            ])
            .args(["--bin", "portolan-next-layout"])
            .args(["--features", "proxy-user/next-layout"])
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .env_remove("RUSTC_BOOTSTRAP")
            .status();
        assert!(status.expect("cargo").success(), "it is built");
        Path::new(BINARY).with_file_name("portolan-next-layout")
    })
}
