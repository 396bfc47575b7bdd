// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cargo xtask image`: builds a static binary and an OCI archive with it, without a docker daemon.

use std::{
    env,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};

use crate::{
    arch::Arch,
    cargo::{self, AGENT_PACKAGE},
    command,
    cross::Builder,
    fs,
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
        let size = copy.metadata()?.len() >> 20;
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
    let archive = archive.display();
    println!("{archive}: {}:{tag}", arguments.name);
    println!("load it on a node: ctr -n k8s.io images import {archive}");
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
        let copy = folder().join(name);
        let partial = copy.with_extension("partial");
        fs::create_dir_all(folder())?;
        std::fs::copy(build(*arch, target)?, &partial).context("copy the binary")?;
        // Not written over the old copy, which may be running.
        fs::rename(&partial, &copy)?;
        Ok((*arch, copy))
    };
    archs.iter().map(build_one).collect()
}

fn folder() -> PathBuf {
    cargo::root().join("target/image")
}

fn pack(binaries: &[(Arch, PathBuf)], name: &str, tag: &str) -> Result<PathBuf> {
    let archive = folder().join(format!("portolan-{tag}.tar"));
    let image = index(&read(binaries)?, name, tag, &[])?;
    // A file with the same content keeps its modification time, so that nodes which have the image
    // need not import it again.
    if fs::read(&archive).ok().as_ref() != Some(&image) {
        fs::write(&archive, image)?;
    }
    Ok(archive)
}

/// Returns the contents of binaries.
pub(crate) fn read(binaries: &[(Arch, PathBuf)]) -> Result<Vec<(Arch, Vec<u8>)>> {
    binaries
        .iter()
        .map(|(arch, file)| Ok((*arch, fs::read(file)?)))
        .collect()
}

/// Returns the OCI archive of one image for all architectures of `binaries`.
pub(crate) fn index(
    binaries: &[(Arch, Vec<u8>)],
    name: &str,
    tag: &str,
    more: &[(&str, &str)],
) -> Result<Vec<u8>> {
    let layer =
        |(_, content): &(Arch, Vec<u8>)| oci::tar(&[(BINARY, 0o755, content)]).map(Blob::layer);
    let layers = binaries.iter().map(layer).collect::<Result<Vec<_>>>()?;
    let own = [
        ("title", NAME),
        ("description", "A service proxy for Kubernetes in eBPF"),
        ("version", tag),
        ("licenses", env!("CARGO_PKG_LICENSE")),
    ];
    let label = |(name, value): &(&str, &str)| {
        let name = format!("org.opencontainers.image.{name}");
        (name, (*value).to_owned())
    };
    let labels: Vec<_> = own.iter().chain(more).map(label).collect();
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
        .args(["--locked", "--release"])
        .args(["--package", AGENT_PACKAGE, "--bin", BINARY])
        .arg("--target-dir")
        .arg(&folder);
    let flags = format!(
        "-Ctarget-feature=+crt-static -Cstrip=symbols {}",
        remapped()
    );
    builder.direct(&mut command, &flags);
    command::check(&mut command, "build the static binary")?;
    let binary = folder.join(arch.target()).join("release").join(BINARY);
    let mut command = command::of("readelf", "--wide --program-headers");
    let headers = command::output(command.arg(&binary), "look at the binary")?;
    ensure!(
        !headers.contains("INTERP"),
        "{} is not static; install libc's static library (Debian package libc6-dev)",
        binary.display()
    );
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
