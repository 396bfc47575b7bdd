// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Chooses the compiler and linker of the kernel programs. Only computes; see `facts`.

use std::path::PathBuf;

/// The version of bpf-linker that is built if no installed one fits. aya cannot read the BTF of
/// maps that older versions emit.
pub(crate) const LINKER_VERSION: (u32, u32, u32) = (0, 13, 0);
/// LLVM versions that bpf-linker `LINKER_VERSION` can be built against.
pub(crate) const LINKER_LLVM: std::ops::RangeInclusive<u32> = 21..=23;
/// The oldest version of Rust that can build the workspace (`rust-version` in Cargo.toml).
pub(crate) const MIN_RUST: (u32, u32) = (1, 95);
/// Debian's compiler with a prebuilt core for the BPF target, and its clippy for `lint`.
pub(crate) const COMPILER_PACKAGES: [&str; 3] =
    ["rustc-web", "libstd-rust-web-dev-bpf", "rust-web-clippy"];

/// A Rust compiler and the cargo to run it with.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Compiler {
    pub(crate) cargo: PathBuf,
    pub(crate) rustc: PathBuf,
    /// The output of `rustc --version`.
    pub(crate) version: String,
    pub(crate) release: (u32, u32),
    pub(crate) llvm: u32,
    pub(crate) nightly: bool,
    /// Whether the compiler has a prebuilt crate `core` for the BPF target.
    pub(crate) bpf_core: bool,
    /// Whether the compiler has the standard library's source, from which `core` can be built.
    pub(crate) rust_source: bool,
}

impl Compiler {
    pub(crate) fn summary(&self) -> String {
        let rustc = self.rustc.display();
        format!("{} (LLVM {}) at {rustc}", self.version, self.llvm)
    }

    fn can_build_for_bpf(&self) -> bool {
        self.release >= MIN_RUST && (self.bpf_core || self.nightly && self.rust_source)
    }
}

/// An installed bpf-linker.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Linker {
    pub(crate) path: PathBuf,
    pub(crate) version: (u32, u32, u32),
    /// The LLVM version that the linker uses; None if LLVM is linked statically. Then only a trial
    /// shows whether the linker fits.
    pub(crate) llvm: Option<u32>,
    /// Whether `cargo xtask setup` has built the linker, in the user's cache.
    pub(crate) built_here: bool,
}

impl Linker {
    /// Returns true if the linker may fit: it reads bitcode of its own LLVM and of older ones.
    fn fits(&self, compiler: &Compiler) -> bool {
        self.version >= LINKER_VERSION && self.llvm.is_none_or(|llvm| llvm >= compiler.llvm)
    }
}

/// What `setup` knows about the machine, and what it has done in this run.
#[derive(Clone, Default, Debug)]
pub(crate) struct Facts {
    pub(crate) compilers: Vec<Compiler>,
    pub(crate) linkers: Vec<Linker>,
    /// LLVM versions whose development files are completely installed.
    pub(crate) llvm_dev: Vec<u32>,
    /// Whether this process may call apt.
    pub(crate) can_install: bool,
    /// Whether apt's package lists have been downloaded in this run.
    pub(crate) lists_updated: bool,
    /// The version of Debian's compiler that apt offers; None if apt offers none.
    pub(crate) apt_compiler: Option<(u32, u32)>,
    /// LLVM versions whose development files apt offers.
    pub(crate) apt_llvm: Vec<u32>,
    /// Debian packages that were installed in this run.
    pub(crate) installed: Vec<String>,
    /// Pairs of compiler and linker (paths) that could not build the trial program.
    pub(crate) ruled_out: Vec<(PathBuf, PathBuf)>,
}

/// What `setup` does next.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Choice {
    /// Try to build the trial program with this pair.
    Use { compiler: Compiler, linker: Linker },
    /// Build bpf-linker against this LLVM version.
    BuildLinker { llvm: u32 },
    /// Install these Debian packages.
    InstallPackages(Vec<String>),
    /// Download apt's package lists.
    UpdateLists,
    /// A person must install something; a line for each missing program.
    Impossible(Vec<String>),
}

/// Chooses what to do next: use a pair that is there, a nightly compiler before Debian's; else
/// build a linker for a compiler; else install packages by apt.
pub(crate) fn choose(facts: &Facts) -> Choice {
    let compilers = facts.compilers.iter();
    let mut compilers: Vec<_> = compilers
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
        let linker = |compiler| linker_llvm(&facts.apt_llvm, compiler, facts);
        let linker = compilers
            .iter()
            .find_map(|compiler| linker(compiler))
            .map(linker_packages);
        let compiler = (facts.apt_compiler >= Some(MIN_RUST))
            .then(|| COMPILER_PACKAGES.map(str::to_owned).to_vec());
        let is_missing = |package: &String| !facts.installed.contains(package);
        // Debian's compiler can be installed where apt lacks a nightly's LLVM.
        let mut choices = [linker, compiler].into_iter().flatten();
        let packages = choices.find(|packages| packages.iter().any(is_missing));
        packages.map(Choice::InstallPackages)
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

/// Returns the oldest of these LLVM versions against which a linker for the compiler can be built.
/// A version with which a linker was built before (and failed) is left out.
fn linker_llvm(versions: &[u32], compiler: &Compiler, facts: &Facts) -> Option<u32> {
    let was_built = |llvm| {
        let mut linkers = facts.linkers.iter();
        linkers.any(|linker| linker.built_here && linker.llvm == Some(llvm))
    };
    let fits = |llvm: u32| LINKER_LLVM.contains(&llvm) && llvm >= compiler.llvm;
    let versions = versions.iter().copied();
    versions
        .filter(|llvm| fits(*llvm) && !was_built(*llvm))
        .min()
}

/// Returns Debian's packages that are needed to build bpf-linker.
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
