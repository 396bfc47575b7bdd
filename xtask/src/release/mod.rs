// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cargo xtask release`: writes all files of a release into one folder, with the same bytes each
//! time. This module builds or reads the parts, and `pack` makes the files from them.

mod pack;

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};

use self::pack::{Files, Parts, VERSION};
use crate::{
    cargo::{self, AGENT_PACKAGE, KERNEL_PACKAGE, Workspace},
    command,
    cross::Arch,
    cross::Builder,
    fs, host, image,
    setup::CYCLONEDX,
};

const VALUES: &str = "deploy/chart/values.yaml";
/// The file that has the digests of all others.
const SUMS: &str = "SHA256SUMS";
/// cargo's build folder in target/ for the second build of `--twice`.
const AGAIN: &str = "static-again";

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Build everything a second time, in another folder, and compare
    #[arg(long)]
    twice: bool,
    /// The source's address, for the image's labels and krew's manifest
    #[arg(long)]
    source: Option<String>,
    /// The registry and folder that will have the image, for the chart: ghcr.io/OWNER
    #[arg(long)]
    registry: Option<String>,
    /// The key by which cosign signs the checksums: a file, env://VARIABLE, or a KMS's address
    #[arg(long)]
    key: Option<String>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let commit = commit()?;
    let make = |target: &str| -> Result<Files> {
        let parts = Parts {
            commit: commit.clone(),
            source: arguments.source.clone(),
            registry: arguments.registry.clone(),
            binaries: image::read(&image::built(&[Arch::Amd64, Arch::Arm64], target)?)?,
            pages: pages(target)?,
            project: project(arguments.registry.as_deref())?,
            bills: bills(&commit)?,
        };
        pack::files(&parts)
    };
    let files = make(image::FOLDER)?;
    if arguments.twice {
        compare(&files, &make(AGAIN)?)?;
        println!("two builds gave the same bytes");
    }
    let folder = cargo::root().join(format!("target/release-{VERSION}"));
    fs::remove_dir_all(&folder)?;
    for (name, content) in &files {
        let file = folder.join(name);
        fs::write(&file, content)?;
        println!("{:>10} {}", content.len(), file.display());
    }
    let lacks = [
        (&arguments.source, "source", "krew's manifest"),
        (&arguments.registry, "registry", "the chart's registry"),
        (&arguments.key, "key", "a signature"),
    ];
    for (_, flag, what) in lacks.iter().filter(|(given, ..)| given.is_none()) {
        println!("left out, because there is no --{flag}: {what}");
    }
    match &arguments.key {
        Some(key) => sign(&folder, key),
        None => Ok(()),
    }
}

/// Has cosign sign the checksums, and with them all files.
fn sign(folder: &Path, key: &str) -> Result<()> {
    let has_cosign = host::find_program("cosign").is_some();
    ensure!(
        has_cosign,
        "left out, because cosign is not in the PATH: a signature"
    );
    let mut command = command::of("cosign", "sign-blob --yes --key");
    command.arg(key).arg("--bundle");
    command.arg(folder.join(format!("{SUMS}.sigstore.json")));
    command.arg(folder.join(SUMS));
    command::check(&mut command, "sign the checksums by cosign")
}

/// The git commit that is released.
#[derive(Clone)]
struct Commit {
    id: String,
    /// The time of the commit, in seconds since 1970.
    time: String,
    /// The same time as text, e.g. 2006-01-02T15:04:05Z.
    date: String,
}

fn commit() -> Result<Commit> {
    let changes = cargo::git("status --porcelain")?;
    ensure!(
        changes.is_empty(),
        "not everything is committed, so the release could not be made again:\n{changes}"
    );
    Ok(Commit {
        id: cargo::git("rev-parse HEAD")?,
        time: cargo::git("log -1 --format=%ct")?,
        date: cargo::git("log -1 --format=%cd --date=format-local:%Y-%m-%dT%H:%M:%SZ")?,
    })
}

/// Returns manual pages and shell completions by file name. A program of the agent's writes them.
fn pages(target: &str) -> Result<Files> {
    let target = cargo::root().join("target").join(target);
    let folder = target.join("pages");
    fs::remove_dir_all(&folder)?;
    let builder = Builder::new(Arch::OWN)?;
    let mut command = cargo::cargo("run");
    command
        .args(["--locked", "--quiet", "--package", AGENT_PACKAGE])
        .args(["--features", "pages", "--bin", "portolan-pages"])
        .arg("--target-dir")
        .arg(target);
    builder.direct(&mut command, "");
    command.arg("--").arg(&folder);
    command::check(&mut command, "write manual pages and completions")?;
    let read = |path: PathBuf| {
        let name = path.file_name().unwrap_or_default();
        Ok((name.display().to_string(), fs::read(&path)?))
    };
    fs::children(&folder)?.into_iter().map(read).collect()
}

/// Returns the agent's and the kernel programs' bills of materials, which cargo-cyclonedx writes.
fn bills(commit: &Commit) -> Result<Files> {
    const NAME: &str = "bill-of-materials";
    let target = Arch::OWN.target();
    let words = format!(
        "cyclonedx --format json --no-build-deps --quiet --override-filename {NAME} \
         --target {target} --manifest-path xtask/Cargo.toml"
    );
    let mut command = command::of(CYCLONEDX.path()?, &words);
    command
        .env("SOURCE_DATE_EPOCH", &commit.time)
        .current_dir(cargo::root());
    command::output(&mut command, "write the bills of materials")?;
    let mut bills = Files::new();
    for (package, folder) in Workspace::read()?.folders() {
        let file = cargo::root().join(folder).join(format!("{NAME}.json"));
        if [AGENT_PACKAGE, KERNEL_PACKAGE].contains(&package.as_str()) {
            let text = fs::read_to_string(&file)?;
            let text = text.replace(&cargo::root().display().to_string(), "/portolan");
            let name = format!("portolan-{VERSION}-{package}.cdx.json");
            bills.insert(name, text.into_bytes());
        }
        if file.exists() {
            fs::remove_file(&file)?;
        }
    }
    let count = bills.len();
    ensure!(count == 2, "cargo-cyclonedx wrote {count} of two bills");
    Ok(bills)
}

/// Returns the repository's files that are packed: the chart, the kubectl plugin, the systemd unit,
/// licences and the changelog. The chart's values get the registry.
fn project(registry: Option<&str>) -> Result<Files> {
    let paths = "deploy/chart deploy/kubectl deploy/systemd LICENSE-APACHE LICENSE-MIT LICENSE-GPL2 CHANGELOG.md";
    let files = cargo::git(&format!("ls-files {paths}"))?;
    let read = |path: &str| Ok((path.to_owned(), fs::read(cargo::root().join(path))?));
    let mut files: Files = files.lines().map(read).collect::<Result<_>>()?;
    if let Some(registry) = registry {
        let values = files.get_mut(VALUES).context("the chart has no values")?;
        let text = str::from_utf8(values).context("read the chart's values")?;
        let at = "\n  repository: ";
        let (before, after) = text.split_once(at).context("they name no image")?;
        *values = format!("{before}{at}{}/{after}", registry.trim_end_matches('/')).into_bytes();
    }
    Ok(files)
}

/// Fails if the files of two builds differ; the error has their names.
fn compare(one: &Files, other: &Files) -> Result<()> {
    let names = one.keys().chain(other.keys());
    let differ = names.filter(|name| one.get(*name) != other.get(*name));
    let differ: BTreeSet<_> = differ.collect();
    ensure!(differ.is_empty(), "two builds differ: {differ:?}");
    Ok(())
}
