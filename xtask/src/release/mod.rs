// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cargo xtask release`: writes all files of a release into one folder, with the same bytes each
//! time. This module builds or reads the parts, and `pack` makes the files from them.

mod deb;
mod pack;
pub(crate) mod sbom;
mod statement;
pub(crate) mod trial;

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail, ensure};

use self::pack::{Files, Parts};
use crate::{
    arch::Arch,
    cargo::{self, AGENT_PACKAGE},
    cross::Builder,
    image,
};

/// cargo's build folder in target/ for the second build of `--twice`.
const AGAIN: &str = "static-again";

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// A processor; may be given more than once [default: all]
    #[arg(long, value_enum)]
    arch: Vec<Arch>,
    /// The folder to write into [default: target/release-VERSION]
    #[arg(long)]
    to: Option<PathBuf>,
    /// Build everything a second time, in another folder, and compare
    #[arg(long)]
    twice: bool,
    /// Also with changes that are not committed
    #[arg(long)]
    allow_dirty: bool,
    /// The source's address, for the image's labels and the provenance
    #[arg(long)]
    source: Option<String>,
    /// Who answers for the Debian package
    #[arg(
        long,
        default_value = "the maintainers of portolan <maintainers@portolan.invalid>"
    )]
    maintainer: String,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let archs: &[Arch] = match arguments.arch.as_slice() {
        [] => &[Arch::Amd64, Arch::Arm64],
        archs => archs,
    };
    let commit = commit(arguments.allow_dirty)?;
    let make = |target: &str| -> Result<Files> {
        let parts = Parts {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            commit: commit.clone(),
            source: arguments.source.clone(),
            maintainer: arguments.maintainer.clone(),
            binaries: binaries(archs, target)?,
            pages: pages(target)?,
            project: project()?,
            bills: sbom::all(&commit)?,
        };
        pack::files(&parts)
    };
    let files = make(image::FOLDER)?;
    if arguments.twice {
        compare(&files, &make(AGAIN)?)?;
        println!("two builds gave the same bytes");
    }
    let name = format!("release-{}", env!("CARGO_PKG_VERSION"));
    let default = || cargo::root().join("target").join(name);
    let folder = arguments.to.clone().unwrap_or_else(default);
    write(&files, &folder)?;
    for (name, content) in &files {
        println!("{:>10} {}", content.len(), folder.join(name).display());
    }
    Ok(())
}

/// The git commit that is released.
#[derive(Clone)]
struct Commit {
    id: String,
    /// The time of the commit, in seconds since 1970.
    time: u64,
    /// The same time as text, e.g. 2006-01-02T15:04:05Z.
    date: String,
}

fn commit(allow_dirty: bool) -> Result<Commit> {
    let git = |arguments: &[&str]| {
        let mut command = Command::new("git");
        command.current_dir(cargo::root()).env("TZ", "UTC");
        let command = command.args(["-c", "safe.directory=*"]).args(arguments);
        Ok::<_, anyhow::Error>(cargo::output(command, "ask git")?.trim().to_owned())
    };
    let changes = git(&["status", "--porcelain"])?;
    ensure!(
        changes.is_empty() || allow_dirty,
        "not everything is committed, so the release could not be made again (--allow-dirty):\n{changes}"
    );
    let time = git(&["log", "-1", "--format=%ct"])?;
    Ok(Commit {
        id: git(&["rev-parse", "HEAD"])?,
        time: time.parse().context("read the commit's time")?,
        date: git(&[
            "log",
            "-1",
            "--format=%cd",
            "--date=format-local:%Y-%m-%dT%H:%M:%SZ",
        ])?,
    })
}

fn binaries(archs: &[Arch], target: &str) -> Result<Vec<(Arch, Vec<u8>)>> {
    let built = image::built(archs, target)?;
    let read = |(arch, file): (Arch, PathBuf)| {
        let content = fs::read(&file).with_context(|| format!("read {}", file.display()))?;
        Ok((arch, content))
    };
    built.into_iter().map(read).collect()
}

/// Returns manual pages and shell completions by file name. A program of the agent's package, built
/// for this machine, writes them.
fn pages(target: &str) -> Result<BTreeMap<String, Vec<u8>>> {
    let folder = cargo::root().join("target").join(target).join("pages");
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| format!("remove {}", folder.display()))?;
    }
    let builder = Builder::new(Arch::OWN)?;
    let mut command = cargo::cargo("run");
    command
        .args(["--locked", "--quiet", "--package", AGENT_PACKAGE])
        .args(["--features", "pages", "--bin", "portolan-pages"])
        .arg("--target-dir")
        .arg(cargo::root().join("target").join(target));
    builder.direct(&mut command, "");
    cargo::check(
        command.arg("--").arg(&folder),
        "write manual pages and completions",
    )?;
    read_folder(&folder, "")
}

/// Returns the repository's files that are packed: the chart, the kubectl plugin, the systemd unit,
/// licences, the changelog and Cargo.lock.
fn project() -> Result<BTreeMap<String, Vec<u8>>> {
    let mut files = BTreeMap::new();
    for folder in ["deploy/chart", "deploy/kubectl", "deploy/systemd"] {
        files.extend(read_folder(&cargo::root().join(folder), folder)?);
    }
    for name in [
        "LICENSE-APACHE",
        "LICENSE-MIT",
        "LICENSE-GPL2",
        "CHANGELOG.md",
        "Cargo.lock",
    ] {
        let content = fs::read(cargo::root().join(name)).with_context(|| format!("read {name}"))?;
        files.insert(name.to_owned(), content);
    }
    Ok(files)
}

/// Returns all files below a folder. Key: the path below it, after `prefix` and `/`.
fn read_folder(folder: &Path, prefix: &str) -> Result<BTreeMap<String, Vec<u8>>> {
    let attempt = || format!("read {}", folder.display());
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(folder).with_context(attempt)? {
        let entry = entry.with_context(attempt)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let name = if prefix.is_empty() {
            name
        } else {
            format!("{prefix}/{name}")
        };
        if entry.file_type().with_context(attempt)?.is_dir() {
            files.extend(read_folder(&entry.path(), &name)?);
        } else {
            files.insert(name, fs::read(entry.path()).with_context(attempt)?);
        }
    }
    Ok(files)
}

/// Fails if the files of two builds differ; the error has their names.
fn compare(one: &Files, other: &Files) -> Result<()> {
    let names = one.keys().chain(other.keys());
    let mut differ: Vec<_> = names
        .filter(|name| one.get(*name) != other.get(*name))
        .collect();
    differ.sort();
    differ.dedup();
    if !differ.is_empty() {
        bail!("two builds differ: {differ:?}");
    }
    Ok(())
}

fn write(files: &Files, folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("make {}", folder.display()))?;
    for (name, content) in files {
        let file = folder.join(name);
        fs::write(&file, content).with_context(|| format!("write {}", file.display()))?;
    }
    Ok(())
}
