// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Chooses the toolchain that builds the kernel programs, as a pure function of what the machine
//! offers.

use std::path::PathBuf;

/// The version of bpf-linker that is built if no installed one fits. Older versions emit BTF of
/// maps that aya cannot read.
pub(crate) const LINKER_VERSION: (u32, u32, u32) = (0, 13, 0);
/// LLVM versions that this bpf-linker can be built against.
pub(crate) const LINKER_LLVM: std::ops::RangeInclusive<u32> = 21..=23;
/// The workspace's rust-version.
pub(crate) const MIN_RUST: (u32, u32) = (1, 95);
/// Debian's compiler with a prebuilt core for the target, and the same release's clippy for `lint`.
pub(crate) const COMPILER_PACKAGES: [&str; 3] =
    ["rustc-web", "libstd-rust-web-dev-bpf", "rust-web-clippy"];

/// A compiler and the cargo to run it with.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Compiler {
    pub(crate) cargo: PathBuf,
    pub(crate) rustc: PathBuf,
    /// The output of `rustc --version`.
    pub(crate) version: String,
    pub(crate) release: (u32, u32),
    pub(crate) llvm: u32,
    pub(crate) nightly: bool,
    /// Whether the compiler has a prebuilt core for the BPF target.
    pub(crate) bpf_core: bool,
    /// Whether the compiler has the library's source, to build core from.
    pub(crate) rust_source: bool,
}

impl Compiler {
    pub(crate) fn summary(&self) -> String {
        format!(
            "{} (LLVM {}) at {}",
            self.version,
            self.llvm,
            self.rustc.display()
        )
    }

    fn can_build_for_bpf(&self) -> bool {
        self.release >= MIN_RUST && (self.bpf_core || self.nightly && self.rust_source)
    }
}

/// A bpf-linker.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Linker {
    pub(crate) path: PathBuf,
    pub(crate) version: (u32, u32, u32),
    /// The LLVM version; `None` if it is linked statically: only a trial shows whether the linker
    /// fits.
    pub(crate) llvm: Option<u32>,
    /// Whether set-up has built the linker, in the cache.
    pub(crate) built_here: bool,
}

impl Linker {
    /// Whether the linker fits: a linker reads the bitcode of its own LLVM and of older ones.
    fn fits(&self, compiler: &Compiler) -> bool {
        self.version >= LINKER_VERSION && self.llvm.is_none_or(|llvm| llvm >= compiler.llvm)
    }
}

/// The facts that were found on the machine.
#[derive(Clone, Default, Debug)]
pub(crate) struct Facts {
    pub(crate) compilers: Vec<Compiler>,
    pub(crate) linkers: Vec<Linker>,
    /// LLVM versions whose development files are complete.
    pub(crate) llvm_dev: Vec<u32>,
    /// Whether this process may call apt.
    pub(crate) can_install: bool,
    /// Whether apt's package lists have been fetched in this run.
    pub(crate) lists_updated: bool,
    /// The release of Debian's compiler that apt offers.
    pub(crate) apt_compiler: Option<(u32, u32)>,
    /// LLVM versions whose development files apt offers.
    pub(crate) apt_llvm: Vec<u32>,
    /// Packages installed in this run.
    pub(crate) installed: Vec<String>,
    /// Compiler and linker pairs that were tried and failed.
    pub(crate) ruled_out: Vec<(PathBuf, PathBuf)>,
}

/// The next action.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Choice {
    /// Try this pair.
    Use { compiler: Compiler, linker: Linker },
    /// Build bpf-linker against this LLVM.
    BuildLinker { llvm: u32 },
    /// Install these Debian packages.
    InstallPackages(Vec<String>),
    /// Fetch apt's package lists.
    UpdateLists,
    /// A person must install something: one line for each program.
    Impossible(Vec<String>),
}

/// Chooses the next action: first a ready pair, nightly's before Debian's; then a pair whose linker
/// can be built here; then packages that apt can install.
pub(crate) fn choose(facts: &Facts) -> Choice {
    let mut compilers: Vec<_> = facts
        .compilers
        .iter()
        .filter(|compiler| compiler.can_build_for_bpf())
        .collect();
    compilers.sort_by_key(|compiler| !compiler.nightly);

    let ready = || {
        compilers.iter().find_map(|compiler| {
            let linker = facts.linkers.iter().find(|linker| {
                let pair = (compiler.rustc.clone(), linker.path.clone());
                linker.fits(compiler) && !facts.ruled_out.contains(&pair)
            })?;
            Some(Choice::Use {
                compiler: (*compiler).clone(),
                linker: linker.clone(),
            })
        })
    };
    let buildable = || {
        compilers.iter().find_map(|compiler| {
            let llvm = linker_llvm(&facts.llvm_dev, compiler, facts)?;
            Some(Choice::BuildLinker { llvm })
        })
    };
    let installable = || {
        let linker = compilers.iter().find_map(|compiler| {
            Some(linker_packages(linker_llvm(
                &facts.apt_llvm,
                compiler,
                facts,
            )?))
        });
        let compiler = (facts.apt_compiler >= Some(MIN_RUST))
            .then(|| COMPILER_PACKAGES.map(str::to_owned).to_vec());
        // If apt lacks the LLVM of a nightly, Debian's compiler can still be installed.
        [linker, compiler]
            .into_iter()
            .flatten()
            .find(|packages| {
                !packages
                    .iter()
                    .all(|package| facts.installed.contains(package))
            })
            .map(Choice::InstallPackages)
    };
    let apt = || match installable() {
        None if !facts.lists_updated => Some(Choice::UpdateLists),
        choice => choice,
    };
    ready()
        .or_else(buildable)
        .or_else(|| if facts.can_install { apt() } else { None })
        .unwrap_or_else(|| Choice::Impossible(missing(&compilers)))
}

/// Returns the oldest LLVM of these against which a linker for the compiler can be built, unless
/// that linker has been built (and was ruled out).
fn linker_llvm(versions: &[u32], compiler: &Compiler, facts: &Facts) -> Option<u32> {
    let built = |llvm| {
        facts
            .linkers
            .iter()
            .any(|l| l.built_here && l.llvm == Some(llvm))
    };
    versions
        .iter()
        .copied()
        .filter(|llvm| LINKER_LLVM.contains(llvm) && *llvm >= compiler.llvm && !built(*llvm))
        .min()
}

/// Debian's packages to build bpf-linker with.
pub(crate) fn linker_packages(llvm: u32) -> Vec<String> {
    vec![
        format!("llvm-{llvm}-dev"),
        format!("libpolly-{llvm}-dev"),
        "libzstd-dev".to_owned(),
        "zlib1g-dev".to_owned(),
    ]
}

fn missing(compilers: &[&Compiler]) -> Vec<String> {
    let (major, minor) = MIN_RUST;
    let (a, b, c) = LINKER_VERSION;
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

#[cfg(test)]
#[path = "choose_tests.rs"]
mod tests;
