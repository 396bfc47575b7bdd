// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cargo xtask setup`: finds or installs the BPF toolchain and the programs that tests need, and
//! writes the toolchain's paths to the user's cache, where proxy-user/datapath/build.rs reads them.
//! `search` finds which toolchain.

pub(crate) mod go;
mod install;
mod search;
mod toolchain;

use std::{env, fs::File, path::PathBuf, sync::LazyLock, time::Instant};

use anyhow::{Context, Result, ensure};

pub(crate) use toolchain::Toolchain;

use crate::{fs, host};

/// What a command of xtask needs to be installed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Needs {
    /// Only the BPF toolchain: compiler and linker of the kernel programs.
    Build,
    /// The BPF toolchain, and the programs that tests and the demo call.
    All,
}

/// The programs that tests and the demo call. A CNI plugin has its full path, because its folder is
/// not in the PATH, and a program there may have the same name.
const TOOLS: &str = "/usr/lib/cni/bandwidth=containernetworking-plugins bpftool ip=iproute2 \
    iptables-legacy=iptables nft=nftables openssl ping=iputils-ping";

/// Prepares the machine and returns the toolchain that builds the kernel programs.
pub(crate) fn run(needs: Needs) -> Result<Toolchain> {
    let _lock = lock()?;
    let missing = match needs {
        Needs::Build => Vec::new(),
        Needs::All => missing_of(TOOLS),
    };
    let file = toolchain::file()?;
    let toolchain = match Toolchain::still_valid(&file) {
        Some(toolchain) => toolchain,
        None => search::find(&missing)?.written(&file)?,
    };
    if !missing.is_empty() {
        install_locked(&missing)?;
    }
    step("setup", &format!("ready: {}", toolchain.summary()));
    Ok(toolchain)
}

/// Prepares the machine for a program that runs agents or loads kernel programs; `what` names it.
pub(crate) fn run_as_root(what: &str) -> Result<()> {
    host::require_root(what, "")?;
    run(Needs::All)?;
    host::ensure_bpffs()
}

/// Prints what a command does now, with the seconds since its first step.
pub(crate) fn step(command: &str, text: &str) {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    eprintln!("{command} [{:6.1} s] {text}", START.elapsed().as_secs_f64());
}

/// Locks the cache folder, which two runs at once would write, until the file is closed.
fn lock() -> Result<File> {
    let file = cache_dir()?.join("lock");
    fs::create_dir_all(cache_dir()?)?;
    let failed = || format!("lock {}", file.display());
    let lock = File::create(&file).with_context(failed)?;
    if lock.try_lock().is_err() {
        step("setup", "waiting until another set-up of this user ends");
        lock.lock().with_context(failed)?;
    }
    Ok(lock)
}

/// A cargo subcommand that is built once per user: name, version, and how long that takes.
pub(crate) struct CargoTool(&'static str, &'static str, &'static str);

/// The cargo subcommand that checks licences and sources of dependencies.
pub(crate) const DENY: CargoTool = CargoTool("cargo-deny", "0.20.2", "3 to 8 minutes");

/// The cargo subcommand that writes bills of materials.
pub(crate) const CYCLONEDX: CargoTool = CargoTool("cargo-cyclonedx", "0.5.9", "2 to 4 minutes");

impl CargoTool {
    fn folder(&self) -> Result<PathBuf> {
        Ok(cache_dir()?.join(format!("{}-{}", self.0, self.1)))
    }

    /// Returns the subcommand's path; None if it has not been built.
    pub(crate) fn built(&self) -> Option<PathBuf> {
        let program = self.folder().ok()?.join("bin").join(self.0);
        host::is_executable(&program).then_some(program)
    }

    /// Returns the path of the subcommand in exactly this version; builds it if it is missing.
    pub(crate) fn path(&self) -> Result<PathBuf> {
        let _lock = lock()?;
        if self.built().is_none() {
            let Self(name, version, takes) = self;
            let what = format!("building {name} {version} ({takes}, once per user)");
            step("setup", &what);
            install::cargo_tool(&self.folder()?, name, version)?;
        }
        self.built().context("cargo has not built it")
    }
}

/// Installs missing programs' Debian packages. Each word is `PROGRAM=PACKAGE`, or the name of both.
pub(crate) fn tools(programs: &str) -> Result<()> {
    packages(&missing_of(programs))
}

/// Installs these Debian packages; where this process cannot do that, the error lists them.
pub(crate) fn packages(missing: &[String]) -> Result<()> {
    if missing.is_empty() {
        return Ok(());
    }
    let _lock = lock()?;
    install_locked(missing)
}

fn install_locked(packages: &[String]) -> Result<()> {
    let list = packages.join(" ");
    ensure!(
        install::is_possible(),
        "Debian packages are missing. Install: {list}"
    );
    install::packages(&list)
}

/// Returns the Debian packages of those programs that are not installed.
fn missing_of(programs: &str) -> Vec<String> {
    let words = programs.split_whitespace();
    let pairs = words.map(|word| word.split_once('=').unwrap_or((word, word)));
    let missing = pairs.filter(|(program, _)| host::find_program(program).is_none());
    missing.map(|(_, package)| package.to_owned()).collect()
}

/// Returns the cache folder of all clones of a user, as proxy-user/datapath/build.rs does.
pub(crate) fn cache_dir() -> Result<PathBuf> {
    let folder = |name| {
        let value = env::var_os(name).filter(|value| !value.is_empty());
        value.map(PathBuf::from)
    };
    let base = folder("XDG_CACHE_HOME").or_else(|| Some(folder("HOME")?.join(".cache")));
    let base = base.context("find the cache folder: set XDG_CACHE_HOME or HOME; neither is set")?;
    Ok(base.join("portolan"))
}
