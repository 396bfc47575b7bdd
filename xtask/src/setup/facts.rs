// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Examines the machine for `choose`: compilers, linkers, LLVM, apt. Does not change the machine.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use super::{
    choose::{COMPILER_PACKAGES, Compiler, Facts, LINKER_LLVM, Linker, linker_packages},
    toolchain::TARGET,
};
use crate::{cargo, command, fs, host};

/// Updates what is known about the machine; keeps what is known about this run of `setup`.
pub(super) fn gather(facts: &mut Facts, cache: &Path) {
    facts.compilers = compilers();
    facts.linkers = linkers(cache);
    facts.llvm_dev = LINKER_LLVM.filter(|llvm| has_llvm_dev(*llvm)).collect();
    facts.can_install = can_install();
    if facts.can_install {
        facts.apt_compiler = apt_version(COMPILER_PACKAGES[0]).and_then(|text| release(&text));
        facts.apt_llvm = LINKER_LLVM
            .filter(|llvm| apt_version(&linker_packages(*llvm)[0]).is_some())
            .collect();
    }
}

/// Returns true if this process can install Debian packages.
pub(super) fn can_install() -> bool {
    host::is_root() && host::find_program("apt-get").is_some()
}

/// Returns a program's stdout; None if it fails.
fn ask(program: &Path, arguments: &[&str]) -> Option<String> {
    // With this variable, rustup's programs would run the toolchain that it names.
    let mut command = Command::new(program);
    command.args(arguments).env_remove("RUSTUP_TOOLCHAIN");
    command::output(&mut command, "ask")
        .ok()
        .map(|text| text.trim().to_owned())
}

fn compilers() -> Vec<Compiler> {
    let mut found: Vec<Compiler> = Vec::new();
    let mut candidates = rustup_nightlies();
    candidates.extend(["/usr/bin/rustc", "/usr/local/bin/rustc"].map(PathBuf::from));
    candidates.extend(host::find_program("rustc"));
    for rustc in candidates {
        if found.iter().all(|compiler| compiler.rustc != rustc) {
            found.extend(compiler(rustc));
        }
    }
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
    Some(Compiler {
        cargo,
        version: verbose.lines().next()?.to_owned(),
        release: release(field("release: ")?)?,
        llvm: field("LLVM version: ")?.split('.').next()?.parse().ok()?,
        nightly,
        bpf_core: has_core(&library.join(TARGET).join("lib")),
        rust_source: library.join("src/rust/library/core/Cargo.toml").is_file(),
        rustc,
    })
}

fn has_core(folder: &Path) -> bool {
    let is_core = |file: &PathBuf| file.to_string_lossy().contains("/libcore-");
    fs::children(folder).is_ok_and(|files| files.iter().any(is_core))
}

fn linkers(cache: &Path) -> Vec<Linker> {
    let own = LINKER_LLVM.map(|llvm| (super::install::linker_path(cache, llvm), true));
    own.chain(host::find_program("bpf-linker").map(|path| (path, false)))
        .filter_map(|(path, built_here)| {
            let version = numbers(ask(&path, &["--version"])?.strip_prefix("bpf-linker ")?)?;
            Some(Linker {
                llvm: linked_llvm(&path),
                version,
                built_here,
                path,
            })
        })
        .collect()
}

/// Returns the LLVM version that a program is dynamically linked with; None if it is not.
fn linked_llvm(program: &Path) -> Option<u32> {
    let libraries = ask(&host::find_program("ldd")?, &[program.to_str()?])?;
    let (_, version) = libraries.split_once("libLLVM")?;
    let (major, ..) = numbers(version.trim_start_matches(['.', 's', 'o', '-']))?;
    Some(major)
}

/// Returns true if Debian's development files of this LLVM version are installed, including Polly,
/// which bpf-linker is linked with as well.
fn has_llvm_dev(llvm: u32) -> bool {
    let prefix = super::install::llvm_prefix(llvm);
    prefix.join("bin/llvm-config").exists() && prefix.join("lib/libPolly.a").exists()
}

/// Returns the version of a package that apt would install; None if there is no such package.
fn apt_version(package: &str) -> Option<String> {
    let answer = ask(&host::find_program("apt-cache")?, &["policy", package])?;
    let mut lines = answer.lines();
    let candidate = lines.find_map(|line| line.trim().strip_prefix("Candidate: "))?;
    (candidate != "(none)").then(|| candidate.to_owned())
}

/// Returns major and minor: (1, 96) of `1.96.0+dfsg1-1`, (22, 1) of `1:22.1.8-1`.
pub(super) fn release(text: &str) -> Option<(u32, u32)> {
    let (major, minor, _) = numbers(text)?;
    Some((major, minor))
}

/// Returns the first three numbers of a version; a missing number is 0. None without any number.
fn numbers(text: &str) -> Option<(u32, u32, u32)> {
    let text = text.split_once(':').map_or(text, |(_, version)| version);
    let parts = text.split(|c: char| !c.is_ascii_digit());
    let mut parts = parts.map(|part| part.parse().ok());
    let major = parts.next()??;
    let mut or_0 = || parts.next().flatten().unwrap_or(0);
    Some((major, or_0(), or_0()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_with_debians_epochs_and_suffixes() {
        assert_eq!(numbers("1:22.1.8-1~deb12u1"), Some((22, 1, 8)));
        assert_eq!(release("1.96.0+dfsg1-1~deb12u2"), Some((1, 96)));
        assert_eq!(release("1.97.0-nightly"), Some((1, 97)));
        assert_eq!(numbers("unknown"), None);
    }
}
