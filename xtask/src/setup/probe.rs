// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests a compiler and a linker by building a minimal kernel program, because version numbers do
//! not prove that they fit.

use std::path::Path;

use anyhow::{Result, ensure};

use super::toolchain::{TARGET, Toolchain};
use crate::{command, fs};

const MANIFEST: &str = r#"
[package]
name = "probe"
version = "0.0.0"
edition = "2024"
[[bin]]
name = "probe"
path = "probe.rs"
[workspace]
[profile.release]
lto = true
"#;

const LOCK: &str = "version = 4\n\n[[package]]\nname = \"probe\"\nversion = \"0.0.0\"\n";

const PROGRAM: &str = r#"
#![no_std]
#![no_main]
#[unsafe(no_mangle)]
#[unsafe(link_section = "classifier")]
pub extern "C" fn probe(number: u32) -> u32 { number.count_ones() }
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! { loop {} }
"#;

/// Builds the minimal program as proxy-user/datapath/build.rs builds portolan's, and checks that
/// the result has its section and BTF.
pub(super) fn probe(toolchain: &Toolchain, cache: &Path) -> Result<()> {
    let folder = cache.join("probe");
    fs::write(folder.join("Cargo.toml"), MANIFEST)?;
    fs::write(folder.join("Cargo.lock"), LOCK)?;
    fs::write(folder.join("probe.rs"), PROGRAM)?;
    let linker = format!("-Clinker={}", toolchain.linker.display());
    let flags = [
        "-Cdebuginfo=2",
        "-Clink-arg=--btf",
        &linker,
        "-Cpanic=abort",
    ];
    let target_dir = folder.join("target");
    let mut command = toolchain.command(&toolchain.cargo, "build", &flags);
    command
        .current_dir(&folder)
        .arg("--target-dir")
        .arg(&target_dir);
    command::output(&mut command, "build a trial program")?;
    let object = fs::read(target_dir.join(TARGET).join("release/probe"))?;
    let result = check_object(&object);
    fs::remove_dir_all(&folder)?;
    result
}

fn check_object(object: &[u8]) -> Result<()> {
    const EM_BPF: [u8; 2] = [247, 0];
    ensure!(
        object.starts_with(b"\x7fELF") && object.get(18..20) == Some(&EM_BPF),
        "the linker's output is not a BPF object"
    );
    for section in ["classifier", ".BTF"] {
        let name = format!("{section}\0");
        let mut windows = object.windows(name.len());
        let found = windows.any(|window| window == name.as_bytes());
        ensure!(found, "the linker's output lacks the section {section}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probe_object_needs_the_bpf_machine_its_section_and_btf() {
        let mut object = b"\x7fELF".to_vec();
        object.resize(18, 0);
        object.extend([247, 0]);
        object.extend(b"\0classifier\0.BTF\0");
        assert!(check_object(&object).is_ok());
        assert!(check_object(&object[..30]).is_err());
        object[18] = 62;
        assert!(check_object(&object).is_err());
    }
}
