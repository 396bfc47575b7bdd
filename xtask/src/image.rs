// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cargo xtask image`: one static binary, and an OCI archive around it, without a docker daemon.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail, ensure};

use crate::{
    arch::Arch,
    cargo::{self, AGENT_PACKAGE},
    cross::Builder,
    oci::{self, Blob, Image},
};

pub(crate) const NAME: &str = "portolan";
const BINARY: &str = "portolan";

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Name of the image
    #[arg(long, default_value = NAME)]
    name: String,
    /// Tag of the image [default: the version]
    #[arg(long)]
    tag: Option<String>,
    /// A processor; may be given more than once, for one image of all [default: this machine's]
    #[arg(long, value_enum)]
    arch: Vec<Arch>,
    /// Only the binary, for deploy/Dockerfile
    #[arg(long)]
    binary_only: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let archs = match arguments.arch.as_slice() {
        [] => &[Arch::OWN],
        archs => archs,
    };
    let copies = built(archs)?;
    for (_, copy) in &copies {
        let size = fs::metadata(copy)?.len() >> 20;
        println!("{}: {size} MiB, static", copy.display());
    }
    if arguments.binary_only {
        return Ok(());
    }
    let tag = arguments
        .tag
        .as_deref()
        .unwrap_or(env!("CARGO_PKG_VERSION"));
    let archive = pack(&copies, &arguments.name, tag)?;
    println!("{}: {}:{tag}", archive.display(), arguments.name);
    println!(
        "load it on a node: ctr -n k8s.io images import {}",
        archive.display()
    );
    Ok(())
}

/// The archive of an image with this name and tag. It is written again only if the binary has changed.
pub(crate) fn archive(name: &str, tag: &str) -> Result<PathBuf> {
    pack(&built(&[Arch::OWN])?, name, tag)
}

/// Builds the binary for each processor, and puts it beside the image: this machine's under its plain name.
fn built(archs: &[Arch]) -> Result<Vec<(Arch, PathBuf)>> {
    let build_one = |arch: &Arch| {
        let name = if *arch == Arch::OWN {
            BINARY.to_owned()
        } else {
            format!("{BINARY}-{}", arch.name())
        };
        let copy = folder()?.join(name);
        place(&build(*arch)?, &copy)?;
        Ok((*arch, copy))
    };
    archs.iter().map(build_one).collect()
}

fn folder() -> Result<PathBuf> {
    let folder = cargo::root().join("target/image");
    fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
    Ok(folder)
}

/// Replaces the old binary, which may be running.
fn place(binary: &Path, copy: &Path) -> Result<()> {
    let partial = copy.with_extension("partial");
    fs::copy(binary, &partial)
        .and_then(|_| fs::rename(&partial, copy))
        .with_context(|| format!("copy the binary to {}", copy.display()))
}

fn pack(binaries: &[(Arch, PathBuf)], name: &str, tag: &str) -> Result<PathBuf> {
    let archive = folder()?.join(format!("portolan-{tag}.tar"));
    let layer = |(_, binary): &(Arch, PathBuf)| {
        let content = fs::read(binary).with_context(|| format!("read {}", binary.display()))?;
        oci::tar(&[(BINARY.to_owned(), 0o755, &content)]).map(Blob::layer)
    };
    let layers = binaries.iter().map(layer).collect::<Result<Vec<_>>>()?;
    let name = format!("{name}:{tag}");
    let entrypoint = format!("/{BINARY}");
    let images: Vec<_> = binaries
        .iter()
        .zip(&layers)
        .map(|((arch, _), layer)| Image {
            name: &name,
            arch: *arch,
            layers: vec![layer],
            entrypoint: vec![&entrypoint],
            arguments: vec!["run"],
        })
        .collect();
    let image = oci::archive(&images)?;
    // A file with the same content keeps its date: nodes that have it need not import it again.
    if fs::read(&archive).is_ok_and(|known| known == image) {
        return Ok(archive);
    }
    fs::write(&archive, image).with_context(|| format!("write {}", archive.display()))?;
    Ok(archive)
}

/// Builds the agent as a static binary.
fn build(arch: Arch) -> Result<PathBuf> {
    let builder = Builder::new(arch)?;
    // A folder of its own: with other flags cargo would build everything again for the other commands.
    let folder = cargo::root().join("target/static");
    let mut command = cargo::cargo("build");
    command
        .args([
            "--locked",
            "--release",
            "--package",
            AGENT_PACKAGE,
            "--bin",
            BINARY,
        ])
        .arg("--target-dir")
        .arg(&folder);
    builder.direct(
        &mut command,
        "-Ctarget-feature=+crt-static -Cstrip=debuginfo",
    );
    let status = command.status().context("start cargo")?;
    ensure!(status.success(), "build the static binary: {status}");
    let binary = folder.join(arch.target()).join("release").join(BINARY);
    let content = fs::read(&binary).with_context(|| format!("read {}", binary.display()))?;
    if let Some(interpreter) = interpreter(&content) {
        bail!(
            "{} is not static, it needs {interpreter}; install libc's static library (Debian package libc6-dev)",
            binary.display()
        );
    }
    Ok(binary)
}

/// The dynamic linker that a 64-bit ELF file names.
fn interpreter(elf: &[u8]) -> Option<String> {
    const PT_INTERP: u64 = 3;
    let number = |at: usize, length: usize| -> Option<u64> {
        let bytes = elf.get(at..at + length)?;
        Some(
            bytes
                .iter()
                .rev()
                .fold(0, |sum, byte| sum << 8 | u64::from(*byte)),
        )
    };
    let at = |at, length| number(at, length).and_then(|found| usize::try_from(found).ok());
    let (headers, size, count) = (at(0x20, 8)?, at(0x36, 2)?, at(0x38, 2)?);
    (0..count)
        .map(|index| headers + index * size)
        .find_map(|header| {
            if number(header, 4)? != PT_INTERP {
                return None;
            }
            let (offset, length) = (at(header + 8, 8)?, at(header + 32, 8)?);
            let name = elf.get(offset..offset + length)?;
            Some(
                String::from_utf8_lossy(name)
                    .trim_end_matches('\0')
                    .to_owned(),
            )
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_wants_a_dynamic_linker_is_told_from_one_that_does_not() {
        let own = fs::read(std::env::current_exe().expect("this program")).expect("its file");
        assert!(interpreter(&own).expect("it is dynamic").contains("ld"));
        assert_eq!(interpreter(b"no ELF file"), None);
    }
}
