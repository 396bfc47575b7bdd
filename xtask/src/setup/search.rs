// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Finds a compiler and a linker of the kernel programs that build a trial program. Builds a linker
//! or installs packages if none do. Called by `setup`.

use std::{
    mem,
    ops::RangeInclusive,
    path::{Path, PathBuf},
};

use anyhow::{Result, bail};

use super::{
    install, list, probe,
    progress::Progress,
    toolchain::{TARGET, Toolchain},
};
use crate::{cargo, command, fs, host};

/// The version of bpf-linker that is built if no installed one fits. aya cannot read the BTF of
/// maps that older versions emit.
pub(super) const LINKER_VERSION: Version = [0, 13, 0];
/// LLVM versions that bpf-linker `LINKER_VERSION` can be built against.
const LINKER_LLVM: RangeInclusive<u32> = 21..=23;
/// The oldest version of Rust that can build the workspace (`rust-version` in Cargo.toml).
const MIN_RUST: Version = [1, 95, 0];
/// Debian's compiler with a prebuilt core for the BPF target, and its clippy for `lint`.
const COMPILER_PACKAGES: [&str; 3] = ["rustc-web", "libstd-rust-web-dev-bpf", "rust-web-clippy"];

/// How often is looked at most. Every round ends with an installation or a build, so that more
/// cannot help.
const ROUNDS: usize = 12;

/// The first three numbers of a version.
type Version = [u32; 3];

/// A Rust compiler that can build for the BPF target, and the cargo to run it with.
pub(super) struct Compiler {
    pub(super) cargo: PathBuf,
    pub(super) rustc: PathBuf,
    /// The output of `rustc --version`.
    pub(super) version: String,
    llvm: u32,
    nightly: bool,
    /// Whether the compiler has a prebuilt crate `core` for the BPF target.
    pub(super) bpf_core: bool,
}

/// A bpf-linker that is new enough.
pub(super) struct Linker {
    pub(super) path: PathBuf,
    /// The LLVM version that the linker uses; None if LLVM is linked statically. Then only a trial
    /// shows whether the linker fits.
    llvm: Option<u32>,
    /// The LLVM version against which `cargo xtask setup` has built it, in the user's cache.
    built_against: Option<u32>,
}

impl Linker {
    /// Returns true if the linker may fit: it reads bitcode of its own LLVM and of older ones.
    fn fits(&self, compiler: &Compiler) -> bool {
        self.llvm.is_none_or(|llvm| llvm >= compiler.llvm)
    }
}

/// Uses a pair that is there, a nightly compiler before Debian's; else builds a linker for a
/// compiler; else installs packages by apt, with new package lists if the old ones have none. An
/// error lists what a person must install, also `others`.
pub(super) fn find(cache: &Path, others: &[String], progress: &Progress) -> Result<Toolchain> {
    progress.step("looking for a BPF toolchain");
    let (mut ruled_out, mut installed) = (Vec::new(), Vec::new());
    let mut has_new_lists = false;
    for _ in 0..ROUNDS {
        let (compilers, linkers) = (compilers(), linkers(cache));
        for compiler in &compilers {
            for linker in linkers.iter().filter(|linker| linker.fits(compiler)) {
                let pair = (compiler.rustc.clone(), linker.path.clone());
                if ruled_out.contains(&pair) {
                    continue;
                }
                let (rustc, linked_by) = (compiler.rustc.display(), linker.path.display());
                let (version, llvm) = (&compiler.version, compiler.llvm);
                let what = format!("{version} (LLVM {llvm}) at {rustc} with {linked_by}");
                progress.step(&format!("trying {what}"));
                let candidate = Toolchain::new(compiler, linker);
                match probe::probe(&candidate, cache) {
                    Ok(()) => return Ok(candidate),
                    Err(error) => progress.step(&format!("{what} does not work: {error:#}")),
                }
                ruled_out.push(pair);
            }
        }
        // The oldest LLVM that is there, for which no linker was built that has failed.
        let llvm = |is_there: &dyn Fn(u32) -> bool| {
            compilers.iter().find_map(|compiler| {
                let was_built = |llvm| linkers.iter().any(|one| one.built_against == Some(llvm));
                let fits =
                    |llvm: &u32| *llvm >= compiler.llvm && is_there(*llvm) && !was_built(*llvm);
                LINKER_LLVM.filter(fits).min()
            })
        };
        if let Some(llvm) = llvm(&has_llvm_dev) {
            install::linker(cache, llvm, progress)?;
            continue;
        }
        if install::is_possible() {
            let offered = |llvm| apt_version(&linker_packages(llvm)[0]).is_some();
            let compiler = COMPILER_PACKAGES.map(str::to_owned).to_vec();
            let is_offered = apt_version(&compiler[0]).is_some_and(|version| version >= MIN_RUST);
            // Debian's compiler can be installed where apt lacks a nightly's LLVM.
            let choices = [
                llvm(&offered).map(linker_packages),
                is_offered.then_some(compiler),
            ];
            let mut choices = choices.into_iter().flatten();
            let is_new =
                |packages: &Vec<String>| packages.iter().any(|one| !installed.contains(one));
            if let Some(packages) = choices.find(is_new) {
                install::packages(cache, &packages, progress)?;
                installed.extend(packages);
                continue;
            }
            if !mem::replace(&mut has_new_lists, true) {
                install::update_lists(cache, progress);
                continue;
            }
        }
        let missing = [missing(&compilers), others.to_vec()].concat();
        let list = list(&missing);
        bail!("set-up cannot install this by itself here. Install:\n{list}");
    }
    let log = install::log_file(cache);
    let log = log.display();
    bail!("no BPF toolchain works after {ROUNDS} rounds of installing and trying; see {log}")
}

/// Returns Debian's packages that are needed to build bpf-linker.
fn linker_packages(llvm: u32) -> Vec<String> {
    vec![
        format!("llvm-{llvm}-dev"),
        format!("libpolly-{llvm}-dev"),
        "libzstd-dev".to_owned(),
        "zlib1g-dev".to_owned(),
    ]
}

fn missing(compilers: &[Compiler]) -> Vec<String> {
    let [major, minor, _] = MIN_RUST;
    let [a, b, c] = LINKER_VERSION;
    let mut lines = Vec::new();
    if compilers.is_empty() {
        lines.push(format!(
            "a Rust compiler {major}.{minor} or newer that can build for bpfel-unknown-none, one of:\n      \
             Debian's {} (in bookworm-security: apt-get install as root),\n      \
             or nightly with its source: rustup toolchain install nightly --component rust-src",
            COMPILER_PACKAGES.join(" "),
        ));
    }
    let llvm = compilers.first().map_or(22, |compiler| compiler.llvm);
    let build = *LINKER_LLVM.end().min(&llvm.max(*LINKER_LLVM.start()));
    lines.push(format!(
        "bpf-linker {a}.{b}.{c} or newer, linked with LLVM {llvm} or newer (never older than the compiler's), \
         one of:\n      {} (Debian packages; `cargo xtask setup` then builds bpf-linker itself),\n      \
         or your own in the PATH: cargo install bpf-linker --version {a}.{b}.{c} --locked \
         --no-default-features --features llvm-{build}",
        linker_packages(build).join(" "),
    ));
    lines
}

/// Returns a program's stdout; None if it fails.
fn ask(program: &Path, arguments: &[&str]) -> Option<String> {
    // With this variable, rustup's programs would run the toolchain that it names.
    let mut command = command::of(program, "");
    command.args(arguments).env_remove("RUSTUP_TOOLCHAIN");
    let text = command::output(&mut command, "ask").ok()?;
    Some(text.trim().to_owned())
}

fn compilers() -> Vec<Compiler> {
    let mut candidates = rustup_nightlies();
    candidates.extend(["/usr/bin/rustc", "/usr/local/bin/rustc"].map(PathBuf::from));
    candidates.extend(host::find_program("rustc"));
    let mut found: Vec<Compiler> = Vec::new();
    for rustc in candidates {
        if found.iter().all(|compiler| compiler.rustc != rustc) {
            found.extend(compiler(rustc));
        }
    }
    found.sort_by_key(|compiler| !compiler.nightly);
    found
}

/// Returns the paths of rustc in rustup's nightly toolchains.
fn rustup_nightlies() -> Vec<PathBuf> {
    let Some(rustup) = host::find_program("rustup") else {
        return Vec::new();
    };
    ask(&rustup, &["toolchain", "list"])
        .unwrap_or_default()
        .lines()
        .filter_map(|line| line.split_whitespace().next())
        .filter(|toolchain| toolchain.starts_with("nightly"))
        .filter_map(|toolchain| ask(&rustup, &["which", "--toolchain", toolchain, "rustc"]))
        .map(PathBuf::from)
        .collect()
}

/// Returns the compiler if it can build for the BPF target.
fn compiler(rustc: PathBuf) -> Option<Compiler> {
    let verbose = ask(&rustc, &["--version", "--verbose"])?;
    let field = |name: &str| verbose.lines().find_map(|line| line.strip_prefix(name));
    let library = PathBuf::from(ask(&rustc, &["--print", "sysroot"])?).join("lib/rustlib");
    // A nightly needs its own cargo for -Zbuild-std; others run under xtask's cargo.
    let sibling = rustc.with_file_name("cargo");
    let nightly = field("release: ")?.contains("nightly");
    let cargo = if nightly && host::is_executable(&sibling) {
        sibling
    } else {
        cargo::path()
    };
    let is_core = |file: &PathBuf| file.to_string_lossy().contains("/libcore-");
    let prebuilt = fs::children(&library.join(TARGET).join("lib"));
    let bpf_core = prebuilt.is_ok_and(|files| files.iter().any(is_core));
    let has_source = library.join("src/rust/library/core/Cargo.toml").is_file();
    let can_build =
        numbers(field("release: ")?)? >= MIN_RUST && (bpf_core || nightly && has_source);
    can_build.then_some(Compiler {
        cargo,
        version: verbose.lines().next()?.to_owned(),
        llvm: field("LLVM version: ")?.split('.').next()?.parse().ok()?,
        nightly,
        bpf_core,
        rustc,
    })
}

/// Returns the installed linkers that are new enough.
fn linkers(cache: &Path) -> Vec<Linker> {
    let own = LINKER_LLVM.map(|llvm| (install::linker_path(cache, llvm), Some(llvm)));
    let others = host::find_program("bpf-linker").map(|path| (path, None));
    let linker = |(path, built_against): (PathBuf, Option<u32>)| {
        let version = numbers(ask(&path, &["--version"])?.strip_prefix("bpf-linker ")?)?;
        (version >= LINKER_VERSION).then_some(Linker {
            llvm: linked_llvm(&path),
            built_against,
            path,
        })
    };
    own.chain(others).filter_map(linker).collect()
}

/// Returns the LLVM version that a program is dynamically linked with; None if it is not.
fn linked_llvm(program: &Path) -> Option<u32> {
    let libraries = ask(&host::find_program("ldd")?, &[program.to_str()?])?;
    let (_, version) = libraries.split_once("libLLVM")?;
    let [major, ..] = numbers(version.trim_start_matches(['.', 's', 'o', '-']))?;
    Some(major)
}

/// Returns true if Debian's development files of this LLVM version are installed, including Polly,
/// which bpf-linker is linked with as well.
fn has_llvm_dev(llvm: u32) -> bool {
    let prefix = install::llvm_prefix(llvm);
    prefix.join("bin/llvm-config").exists() && prefix.join("lib/libPolly.a").exists()
}

/// Returns the version of a package that apt would install; None if there is no such package.
fn apt_version(package: &str) -> Option<Version> {
    let answer = ask(&host::find_program("apt-cache")?, &["policy", package])?;
    let mut lines = answer.lines();
    let candidate = lines.find_map(|line| line.trim().strip_prefix("Candidate: "))?;
    numbers(candidate)
}

/// Returns the first three numbers of a version, (22, 1, 8) of `1:22.1.8-1`; a missing number is 0.
/// None without any number.
fn numbers(text: &str) -> Option<Version> {
    let text = text.split_once(':').map_or(text, |(_, version)| version);
    let parts = text.split(|c: char| !c.is_ascii_digit());
    let mut parts = parts.map(|part| part.parse().ok());
    let major = parts.next()??;
    let mut or_0 = || parts.next().flatten().unwrap_or(0);
    Some([major, or_0(), or_0()])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_with_debians_epochs_and_suffixes() {
        assert_eq!(numbers("1:22.1.8-1~deb12u1"), Some([22, 1, 8]));
        assert_eq!(numbers("1.96.0+dfsg1-1~deb12u2"), Some([1, 96, 0]));
        assert!(numbers("1.97.0-nightly") > Some(MIN_RUST));
        assert_eq!(numbers("(none)"), None);
    }
}
