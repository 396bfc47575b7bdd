// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Finds a compiler and a linker of the kernel programs that build a trial program. Builds a linker
//! or installs packages if none do. Called by `setup`.

use std::{ffi::OsStr, ops::RangeInclusive, path::PathBuf};

use anyhow::{Result, bail};

use super::{
    install, step,
    toolchain::{TARGET, Toolchain, probe},
};
use crate::{cargo, command, fs, host};

/// The bpf-linker that is built if none fits. aya cannot read older ones' BTF of maps.
pub(super) const LINKER_VERSION: &str = "0.13.0";
/// LLVM versions that bpf-linker `LINKER_VERSION` can be built against.
const LINKER_LLVM: RangeInclusive<u32> = 21..=23;
/// The oldest version of Rust that can build the workspace.
const MIN_RUST: &str = env!("CARGO_PKG_RUST_VERSION");
/// Debian's compiler with a prebuilt core for the BPF target, and its clippy for `lint`.
const COMPILER_PACKAGES: &str = "rustc-web libstd-rust-web-dev-bpf rust-web-clippy";

/// A Rust compiler that can build for the BPF target.
struct Compiler {
    /// Its toolchain, without a linker.
    toolchain: Toolchain,
    llvm: u32,
    nightly: bool,
}

/// Uses a pair that is there, a nightly compiler before Debian's; else builds a linker for a
/// compiler, after installing LLVM where that is missing; else installs Debian's compiler and does
/// it for that. An error lists what a person must install, also `others`.
pub(super) fn find(others: &[String]) -> Result<Toolchain> {
    step("setup", "looking for a BPF toolchain");
    let installs = install::is_possible();
    for has_debians in [false, true] {
        if has_debians && !(installs && is_installed(COMPILER_PACKAGES)) {
            break;
        }
        let (compilers, linkers) = (compilers(), linkers());
        for compiler in &compilers {
            // A linker reads bitcode of its own LLVM and of older ones.
            let own = LINKER_LLVM.filter(|llvm| *llvm < compiler.llvm);
            let too_old: Vec<_> = own.flat_map(install::linker_path).collect();
            for linker in linkers.iter().filter(|linker| !too_old.contains(linker)) {
                if let Some(found) = tried(compiler, linker.clone()) {
                    return Ok(found);
                }
            }
        }
        for compiler in &compilers {
            let fitting = LINKER_LLVM.filter(|llvm| *llvm >= compiler.llvm);
            let (there, missing): (Vec<_>, Vec<_>) = fitting.partition(|llvm| has_llvm_dev(*llvm));
            for llvm in there.into_iter().chain(missing) {
                let linker = install::linker_path(llvm)?;
                if linkers.contains(&linker) {
                    continue;
                }
                if has_llvm_dev(llvm) || installs && is_installed(&linker_packages(llvm)) {
                    install::linker(llvm)?;
                    if let Some(found) = tried(compiler, linker) {
                        return Ok(found);
                    }
                }
            }
        }
    }
    let missing = missing(&compilers(), others);
    bail!("set-up cannot install this by itself here. Install:\n{missing}")
}

/// Installs Debian packages; prints why if it fails.
fn is_installed(packages: &str) -> bool {
    let installed = install::packages(packages);
    if let Err(error) = &installed {
        step("setup", &format!("{error:#}"));
    }
    installed.is_ok()
}

/// Builds the trial program; returns None if that fails.
fn tried(compiler: &Compiler, linker: PathBuf) -> Option<Toolchain> {
    let mut candidate = compiler.toolchain.clone();
    candidate.linker = linker;
    let (llvm, rustc) = (compiler.llvm, candidate.rustc.display());
    let what = format!("{} (LLVM {llvm}) at {rustc}", candidate.summary());
    step("setup", &format!("trying {what}"));
    match probe(&candidate) {
        Ok(()) => return Some(candidate),
        Err(error) => step("setup", &format!("{what} does not work: {error:#}")),
    }
    None
}

/// Returns Debian's packages that are needed to build bpf-linker.
fn linker_packages(llvm: u32) -> String {
    format!("llvm-{llvm}-dev libpolly-{llvm}-dev libzstd-dev zlib1g-dev")
}

/// Returns a list of what a person must install.
fn missing(compilers: &[Compiler], others: &[String]) -> String {
    let llvm = compilers.first().map_or(22, |compiler| compiler.llvm);
    let build = *LINKER_LLVM.end().min(&llvm.max(*LINKER_LLVM.start()));
    let compiler = format!(
        "  - a Rust compiler {MIN_RUST} or newer that can build for bpfel-unknown-none, one of:\n      \
         Debian's {COMPILER_PACKAGES} (in bookworm-security: apt-get install as root),\n      \
         or nightly with its source: rustup toolchain install nightly --component rust-src\n"
    );
    let compiler = if compilers.is_empty() { &compiler } else { "" };
    format!(
        "{compiler}  - bpf-linker {LINKER_VERSION} or newer, linked with LLVM {llvm} or newer (never older than the \
         compiler's), one of:\n      {} (Debian packages; `cargo xtask setup` then builds bpf-linker itself),\n      \
         or your own in the PATH: cargo install bpf-linker --version {LINKER_VERSION} --locked \
         --no-default-features --features llvm-{build}{}",
        linker_packages(build),
        match others.join(" ") {
            none if none.is_empty() => none,
            packages => format!("\n  - for the tests, Debian's {packages}"),
        }
    )
}

/// Returns a program's stdout; None if it fails.
fn ask(program: impl AsRef<OsStr>, words: &str) -> Option<String> {
    // With this variable, rustup's programs would run the toolchain that it names.
    let mut command = command::of(program, words);
    let text = command::output(command.env_remove("RUSTUP_TOOLCHAIN"), "ask").ok()?;
    Some(text.trim().to_owned())
}

/// Returns the compilers that can build for the BPF target: rustup's nightly ones first.
fn compilers() -> Vec<Compiler> {
    let toolchains = ask("rustup", "toolchain list").unwrap_or_default();
    let lines = toolchains.lines();
    let nightlies = lines.filter_map(|line| line.split_whitespace().next());
    let nightlies = nightlies.filter(|toolchain| toolchain.starts_with("nightly"));
    let which = |name| Some(ask("rustup", &format!("which --toolchain {name} rustc"))?.into());
    let mut candidates: Vec<PathBuf> = nightlies.filter_map(which).collect();
    candidates.extend(["/usr/bin/rustc", "/usr/local/bin/rustc"].map(PathBuf::from));
    candidates.extend(host::find_program("rustc"));
    let mut found: Vec<Compiler> = Vec::new();
    for rustc in candidates {
        let is_new = |known: &Compiler| known.toolchain.rustc != rustc;
        if found.iter().all(is_new) {
            found.extend(compiler(rustc));
        }
    }
    found.sort_by_key(|compiler| !compiler.nightly);
    found
}

/// Returns the compiler if it can build for the BPF target.
fn compiler(rustc: PathBuf) -> Option<Compiler> {
    let verbose = ask(&rustc, "--version --verbose")?;
    let field = |name: &str| verbose.lines().find_map(|line| line.strip_prefix(name));
    let library = PathBuf::from(ask(&rustc, "--print sysroot")?).join("lib/rustlib");
    // A nightly needs its own cargo for -Zbuild-std; others run under xtask's cargo.
    let sibling = rustc.with_file_name("cargo");
    let release = field("release: ")?;
    let nightly = release.contains("nightly");
    let is_own = nightly && host::is_executable(&sibling);
    let cargo = if is_own { sibling } else { cargo::path() };
    let is_core = |file: &PathBuf| file.to_string_lossy().contains("/libcore-");
    let prebuilt = fs::children(&library.join(TARGET).join("lib"));
    let bpf_core = prebuilt.is_ok_and(|files| files.iter().any(is_core));
    let has_source = library.join("src/rust/library/core/Cargo.toml").is_file();
    let can_build = numbers(release) >= numbers(MIN_RUST) && (bpf_core || nightly && has_source);
    let toolchain = Toolchain {
        cargo,
        rustc,
        linker: PathBuf::new(),
        build_std: !bpf_core,
        version: verbose.lines().next()?.to_owned(),
    };
    let llvm = field("LLVM version: ")?.split('.').next()?.parse().ok()?;
    can_build.then_some(Compiler {
        toolchain,
        llvm,
        nightly,
    })
}

/// Returns the installed linkers that are new enough.
fn linkers() -> Vec<PathBuf> {
    let own = LINKER_LLVM.filter_map(|llvm| install::linker_path(llvm).ok());
    let all = own.chain(host::find_program("bpf-linker"));
    let is_new = |path: &PathBuf| {
        let version = ask(path, "--version");
        let version = version.and_then(|text| numbers(text.strip_prefix("bpf-linker ")?));
        version >= numbers(LINKER_VERSION)
    };
    all.filter(is_new).collect()
}

/// Returns true if this LLVM's development files are installed, and Polly, which bpf-linker links.
fn has_llvm_dev(llvm: u32) -> bool {
    let prefix = install::llvm_prefix(llvm);
    prefix.join("bin/llvm-config").exists() && prefix.join("lib/libPolly.a").exists()
}

/// Returns the first three numbers of a version, (22, 1, 8) of `22.1.8-1`; a missing number is 0.
/// None without any number.
fn numbers(text: &str) -> Option<[u32; 3]> {
    let parts = text.split(|c: char| !c.is_ascii_digit());
    let mut parts = parts.map(|part| part.parse().ok());
    let major = parts.next()??;
    let mut or_0 = || parts.next().flatten().unwrap_or(0);
    Some([major, or_0(), or_0()])
}
