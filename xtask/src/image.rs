// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cargo xtask image`: builds a static binary and an OCI archive with it, without a docker daemon.

use std::{
    env, fs,
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
/// cargo's build folder for static binaries, in target/. It is separate because other commands have
/// other flags, with which cargo would build everything again.
pub(crate) const FOLDER: &str = "static";

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
    let copies = built(archs, FOLDER)?;
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

/// Builds the image and returns the path of its archive. The archive file is written again only if
/// its content has changed.
pub(crate) fn archive(name: &str, tag: &str) -> Result<PathBuf> {
    pack(&built(&[Arch::OWN], FOLDER)?, name, tag)
}

/// Builds the binary for each architecture in the folder target/`target`, and copies it into
/// target/image. The copy for this machine is named `portolan`; the other names end with the
/// architecture.
pub(crate) fn built(archs: &[Arch], target: &str) -> Result<Vec<(Arch, PathBuf)>> {
    let build_one = |arch: &Arch| {
        let name = if *arch == Arch::OWN {
            BINARY.to_owned()
        } else {
            format!("{BINARY}-{}", arch.name())
        };
        let copy = folder()?.join(name);
        place(&build(*arch, target)?, &copy)?;
        Ok((*arch, copy))
    };
    archs.iter().map(build_one).collect()
}

fn folder() -> Result<PathBuf> {
    let folder = cargo::root().join("target/image");
    fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
    Ok(folder)
}

/// Replaces the file `copy` by `binary`, by renaming: the old file may be running.
fn place(binary: &Path, copy: &Path) -> Result<()> {
    let partial = copy.with_extension("partial");
    fs::copy(binary, &partial)
        .and_then(|_| fs::rename(&partial, copy))
        .with_context(|| format!("copy the binary to {}", copy.display()))
}

fn pack(binaries: &[(Arch, PathBuf)], name: &str, tag: &str) -> Result<PathBuf> {
    let archive = folder()?.join(format!("portolan-{tag}.tar"));
    let read = |(arch, binary): &(Arch, PathBuf)| {
        let content = fs::read(binary).with_context(|| format!("read {}", binary.display()))?;
        Ok((*arch, content))
    };
    let binaries = binaries.iter().map(read).collect::<Result<Vec<_>>>()?;
    let image = index(&binaries, name, tag, &[])?;
    // A file with the same content keeps its modification time, so that nodes which have the image
    // need not import it again.
    if fs::read(&archive).is_ok_and(|known| known == image) {
        return Ok(archive);
    }
    fs::write(&archive, image).with_context(|| format!("write {}", archive.display()))?;
    Ok(archive)
}

/// Returns the OCI archive of one image for all architectures of `binaries`.
pub(crate) fn index(
    binaries: &[(Arch, Vec<u8>)],
    name: &str,
    tag: &str,
    more: &[(&str, String)],
) -> Result<Vec<u8>> {
    let layer = |(_, content): &(Arch, Vec<u8>)| {
        oci::tar(&[(BINARY.to_owned(), 0o755, content)]).map(Blob::layer)
    };
    let layers = binaries.iter().map(layer).collect::<Result<Vec<_>>>()?;
    let own = [
        ("title", NAME),
        ("description", "A service proxy for Kubernetes in eBPF"),
        ("version", tag),
        ("licenses", env!("CARGO_PKG_LICENSE")),
    ];
    let labels: Vec<_> = own
        .iter()
        .map(|(name, value)| (*name, (*value).to_owned()))
        .chain(more.iter().cloned())
        .map(|(name, value)| (format!("org.opencontainers.image.{name}"), value))
        .collect();
    let labels: Vec<_> = labels
        .iter()
        .map(|(name, value)| (name.as_str(), value.clone()))
        .collect();
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
            labels: &labels,
        })
        .collect();
    oci::archive(&images)
}

/// Builds the agent as a static binary without symbols and returns its path. The kernel programs in
/// it keep their symbols and their BTF.
fn build(arch: Arch, target: &str) -> Result<PathBuf> {
    let builder = Builder::new(arch)?;
    let folder = cargo::root().join("target").join(target);
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
        &format!(
            "-Ctarget-feature=+crt-static -Cstrip=symbols {}",
            remapped()
        ),
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

/// Returns flags for rustc, so that the binary does not contain paths of this machine.
fn remapped() -> String {
    let cargo_home = env::var_os("CARGO_HOME").map(PathBuf::from);
    let cargo_home = cargo_home.or_else(|| Some(Path::new(&env::var_os("HOME")?).join(".cargo")));
    let named = [(Some(cargo::root()), "/portolan"), (cargo_home, "/cargo")];
    named
        .iter()
        .filter_map(|(folder, name)| Some((folder.as_ref()?.to_str()?, name)))
        // Flags are separated by spaces, so folders with spaces in their path stay.
        .filter(|(folder, _)| !folder.contains(' '))
        .map(|(folder, name)| format!("--remap-path-prefix={folder}={name}"))
        .collect::<Vec<_>>()
        .join(" ")
}

/// Returns the dynamic linker that a 64-bit ELF file names; None for a static binary.
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
        let own = fs::read(env::current_exe().expect("this program")).expect("its file");
        assert!(interpreter(&own).expect("it is dynamic").contains("ld"));
        assert_eq!(interpreter(b"no ELF file"), None);
    }
}
