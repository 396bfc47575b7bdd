// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cargo xtask setup`: finds or installs the BPF toolchain and the programs that tests need, and
//! writes the toolchain's paths to the user's cache, where proxy-user/datapath/build.rs reads them.
//! `search` finds which toolchain.

pub(crate) mod control_plane;
pub(crate) mod go;
mod install;
mod probe;
mod progress;
mod search;
mod toolchain;

use std::{
    fs::File,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};

use progress::Progress;
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

/// A program and the Debian package that contains it.
type Tool = (&'static str, &'static str);

/// The programs that tests and the demo call. A CNI plugin has its full path, because its folder is
/// not in the PATH, and a program there may have the same name.
const TOOLS: [Tool; 7] = [
    ("/usr/lib/cni/bandwidth", "containernetworking-plugins"),
    ("bpftool", "bpftool"),
    ("ip", "iproute2"),
    ("iptables-legacy", "iptables"),
    ("nft", "nftables"),
    ("openssl", "openssl"),
    ("ping", "iputils-ping"),
];

/// Prepares the machine and returns the toolchain that builds the kernel programs.
pub(crate) fn run(needs: Needs) -> Result<Toolchain> {
    let progress = Progress::start();
    let cache = cache_dir()?;
    let _lock = lock(&cache, &progress)?;

    let missing_tools = match needs {
        Needs::Build => Vec::new(),
        Needs::All => missing_of(&TOOLS),
    };
    let file = toolchain::file(&cache);
    let lines = missing_tools.iter().map(tool_line).collect::<Vec<_>>();
    let toolchain = match Toolchain::still_valid(&file) {
        Some(toolchain) => toolchain,
        None => search::find(&cache, &lines, &progress)?.written(&file)?,
    };
    install_missing(&cache, &progress, &names(&missing_tools), &lines)?;
    progress.step(&format!("ready: {}", toolchain.summary()));
    Ok(toolchain)
}

/// Prepares the machine for a program that runs agents or loads kernel programs; `what` names it.
pub(crate) fn run_as_root(what: &str) -> Result<()> {
    host::require_root(what, "")?;
    run(Needs::All)?;
    host::ensure_bpffs()
}

/// Locks the cache folder, because two runs of `setup` at once would write the same files. The lock
/// ends when the returned file is closed.
fn lock(cache: &Path, progress: &Progress) -> Result<File> {
    fs::create_dir_all(cache)?;
    let file = cache.join("lock");
    let failed = || format!("lock {}", file.display());
    let lock = File::create(&file).with_context(failed)?;
    if lock.try_lock().is_err() {
        progress.step("waiting until another set-up of this user has ended");
        lock.lock().with_context(failed)?;
    }
    Ok(lock)
}

/// A cargo subcommand that is built once per user of this machine.
pub(crate) struct CargoTool {
    name: &'static str,
    version: &'static str,
    /// A text for the user: how long building the subcommand takes.
    takes: &'static str,
}

/// The cargo subcommand that checks licences and sources of dependencies.
pub(crate) const DENY: CargoTool = CargoTool {
    name: "cargo-deny",
    version: "0.20.2",
    takes: "3 to 8 minutes",
};

/// The cargo subcommand that writes bills of materials.
pub(crate) const CYCLONEDX: CargoTool = CargoTool {
    name: "cargo-cyclonedx",
    version: "0.5.9",
    takes: "2 to 4 minutes",
};

impl CargoTool {
    fn place(&self) -> Result<PathBuf> {
        Ok(cache_dir()?.join(format!("{}-{}", self.name, self.version)))
    }
    /// Returns true if the subcommand has been built.
    pub(crate) fn is_built(&self) -> bool {
        let program = self.place().map(|place| place.join("bin").join(self.name));
        program.is_ok_and(|program| host::is_executable(&program))
    }
}

/// Returns the path of a cargo subcommand in exactly this version; builds it if it is missing.
pub(crate) fn cargo_tool(tool: &CargoTool) -> Result<PathBuf> {
    let cache = cache_dir()?;
    let place = tool.place()?;
    let program = place.join("bin").join(tool.name);
    if !host::is_executable(&program) {
        let progress = Progress::start();
        let _lock = lock(&cache, &progress)?;
        if !host::is_executable(&program) {
            let (name, version, takes) = (tool.name, tool.version, tool.takes);
            progress.step(&format!(
                "building {name} {version} ({takes}, once per user)"
            ));
            install::cargo_tool(&cache, &place, name, version)?;
            progress.step("built");
        }
    }
    Ok(program)
}

/// Installs the Debian packages of those programs that are missing.
pub(crate) fn tools(programs: &[Tool]) -> Result<()> {
    packages(&names(&missing_of(programs)))
}

/// Installs these Debian packages; where this process cannot do that, the error lists them.
pub(crate) fn packages(missing: &[String]) -> Result<()> {
    if missing.is_empty() {
        return Ok(());
    }
    let progress = Progress::start();
    let cache = cache_dir()?;
    let _lock = lock(&cache, &progress)?;
    install_missing(&cache, &progress, missing, missing)
}

/// Installs Debian packages; where this process cannot do that, the error has a line for each.
fn install_missing(
    cache: &Path,
    progress: &Progress,
    packages: &[String],
    lines: &[String],
) -> Result<()> {
    if packages.is_empty() {
        return Ok(());
    }
    ensure!(
        install::is_possible(),
        "Debian packages are missing. Install:\n{}",
        list(lines)
    );
    install::packages(cache, packages, progress)
}

/// Returns those of the programs (name, Debian package) that are not installed.
fn missing_of(tools: &[Tool]) -> Vec<Tool> {
    let all = tools.iter().copied();
    all.filter(|(tool, _)| host::find_program(tool).is_none())
        .collect()
}

/// Returns the names of the Debian packages of these programs.
fn names(tools: &[Tool]) -> Vec<String> {
    tools
        .iter()
        .map(|(_, package)| (*package).to_owned())
        .collect()
}

fn tool_line((tool, package): &Tool) -> String {
    format!("{tool} (Debian package {package}): the tests and the demo call it")
}

fn list(lines: &[String]) -> String {
    format!("  - {}", lines.join("\n  - "))
}

/// Returns the cache folder of all clones of a user, as proxy-user/datapath/build.rs does.
pub(crate) fn cache_dir() -> Result<PathBuf> {
    let folder = |name| {
        std::env::var_os(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    let base = folder("XDG_CACHE_HOME").or_else(|| Some(folder("HOME")?.join(".cache")));
    let base = base.context("find the cache folder: set XDG_CACHE_HOME or HOME; neither is set")?;
    Ok(base.join("portolan"))
}
