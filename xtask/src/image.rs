// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cargo xtask image`: builds a static binary and an OCI archive with it, without a docker daemon.

use std::{env, path::PathBuf};

use anyhow::{Result, ensure};
use serde_json::Value;

use crate::{
    cargo::{self, AGENT_PACKAGE},
    command,
    cross::{Arch, Builder},
    fs,
    oci::{self, Blob, Image},
};

/// The name of the image, and of the binary in it.
const NAME: &str = "portolan";
const VERSION: &str = env!("CARGO_PKG_VERSION");
/// cargo's build folder for static binaries, in target/. It is separate because other commands have
/// other flags, with which cargo would build everything again.
pub(crate) const FOLDER: &str = "static";

#[derive(clap::Args)]
pub(crate) struct Arguments {
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
    let archive = pack(&copies)?;
    let archive = archive.display();
    println!("{archive}: {}", name());
    println!("load it on a node: ctr -n k8s.io images import {archive}");
    Ok(())
}

/// Returns the name of the image with its tag.
pub(crate) fn name() -> String {
    format!("{NAME}:{VERSION}")
}

/// Builds the image and returns its archive's path. An unchanged archive is not written again.
pub(crate) fn archive() -> Result<PathBuf> {
    pack(&built(&[Arch::OWN], FOLDER)?)
}

/// Builds the binary for each architecture in the folder target/`target`, and copies it into
/// target/image: as `portolan` for this machine, else with the architecture at the name's end.
pub(crate) fn built(archs: &[Arch], target: &str) -> Result<Vec<(Arch, PathBuf)>> {
    let build_one = |arch: &Arch| {
        let name = match *arch {
            Arch::OWN => NAME.to_owned(),
            other => format!("{NAME}-{}", other.name()),
        };
        let copy = folder().join(name);
        let partial = copy.with_extension("partial");
        fs::copy(&build(*arch, target)?, &partial)?;
        // Not written over the old copy, which may be running.
        fs::rename(&partial, &copy)?;
        Ok((*arch, copy))
    };
    archs.iter().map(build_one).collect()
}

fn folder() -> PathBuf {
    cargo::root().join("target/image")
}

fn pack(binaries: &[(Arch, PathBuf)]) -> Result<PathBuf> {
    let archive = folder().join(format!("portolan-{VERSION}.tar"));
    let image = index(&name(), &read(binaries)?, &labels(&[]), Ok)?;
    // Nodes which have the image need not import it again, as long as the file keeps its time.
    fs::replace(&archive, image)?;
    Ok(archive)
}

/// Returns the contents of binaries.
pub(crate) fn read(binaries: &[(Arch, PathBuf)]) -> Result<Vec<(Arch, Vec<u8>)>> {
    let read = |(arch, file): &(Arch, PathBuf)| Ok((*arch, fs::read(file)?));
    binaries.iter().map(read).collect()
}

/// Returns the annotations of images and charts, as a JSON object; `more`: those of a release.
pub(crate) fn labels(more: &[(&str, &str)]) -> Value {
    let own = [
        ("title", NAME),
        ("description", "A service proxy for Kubernetes in eBPF"),
        ("version", VERSION),
        ("licenses", env!("CARGO_PKG_LICENSE")),
    ];
    let label = |(name, value): &(&str, &str)| {
        let name = format!("org.opencontainers.image.{name}");
        (name, (*value).to_owned())
    };
    own.iter().chain(more).map(label).collect()
}

/// Returns the OCI archive of one image for all architectures; `pack` may compress its layers.
pub(crate) fn index(
    name: &str,
    binaries: &[(Arch, Vec<u8>)],
    labels: &Value,
    pack: impl Fn(Blob) -> Result<Blob>,
) -> Result<Vec<u8>> {
    let layer = |(_, content): &(Arch, Vec<u8>)| pack(Blob::of_file(NAME, content)?);
    let layers = binaries.iter().map(layer).collect::<Result<Vec<_>>>()?;
    let image = |((arch, _), layer): (&(Arch, Vec<u8>), _)| Image {
        name,
        arch: *arch,
        layers: vec![layer],
        entrypoint: vec!["/portolan"],
        arguments: vec!["run"],
        labels,
    };
    let images: Vec<_> = binaries.iter().zip(&layers).map(image).collect();
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
        .args(["--package", AGENT_PACKAGE, "--bin", NAME])
        .arg("--target-dir")
        .arg(&folder);
    let flags = "-Ctarget-feature=+crt-static -Cstrip=symbols";
    builder.direct(&mut command, &format!("{flags} {}", remapped()));
    command::check(&mut command, "build the static binary")?;
    let binary = folder.join(arch.target()).join("release").join(NAME);
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
    let variable = |name| env::var(name).ok();
    let cargo_home = variable("CARGO_HOME").or_else(|| Some(variable("HOME")? + "/.cargo"));
    let root = cargo::root().to_str().map(str::to_owned);
    let flag = |(folder, name): (Option<String>, &str)| {
        // Flags are separated by spaces, so folders with spaces in their path stay.
        let folder = folder.filter(|folder| !folder.contains(' '))?;
        Some(format!("--remap-path-prefix={folder}={name}"))
    };
    let named = [(root, "/portolan"), (cargo_home, "/cargo")];
    let flags = named.into_iter().filter_map(flag);
    flags.collect::<Vec<_>>().join(" ")
}
