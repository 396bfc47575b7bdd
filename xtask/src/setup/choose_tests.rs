// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests of `choose` with simulated machines.

use rstest::rstest;

use super::*;

fn nightly() -> Compiler {
    Compiler {
        cargo: "/rustup/nightly/bin/cargo".into(),
        rustc: "/rustup/nightly/bin/rustc".into(),
        version: "rustc 1.97.0-nightly".to_owned(),
        release: (1, 97),
        llvm: 22,
        nightly: true,
        bpf_core: false,
        rust_source: true,
    }
}

fn debian() -> Compiler {
    Compiler {
        cargo: "/opt/rust/bin/cargo".into(),
        rustc: "/usr/bin/rustc".into(),
        version: "rustc 1.96.0".to_owned(),
        release: (1, 96),
        nightly: false,
        bpf_core: true,
        rust_source: false,
        ..nightly()
    }
}

fn stable() -> Compiler {
    Compiler {
        rustc: "/rustup/stable/bin/rustc".into(),
        bpf_core: false,
        ..debian()
    }
}

fn newer_nightly() -> Compiler {
    Compiler {
        llvm: 23,
        ..nightly()
    }
}

fn nightly_without_source() -> Compiler {
    Compiler {
        rust_source: false,
        ..nightly()
    }
}

fn own(path: &str, llvm: Option<u32>) -> Linker {
    Linker {
        path: path.into(),
        version: LINKER_VERSION,
        llvm,
        built_here: false,
    }
}

fn linker(llvm: u32) -> Linker {
    Linker {
        built_here: true,
        ..own(&format!("/cache/llvm-{llvm}/bpf-linker"), Some(llvm))
    }
}

fn old_linker() -> Linker {
    Linker {
        version: (0, 9, 14),
        ..own("/usr/bin/bpf-linker", Some(22))
    }
}

/// A machine with Debian 12 and its security archive, as root, nothing installed.
fn fresh_debian() -> Facts {
    Facts {
        compilers: vec![stable()],
        can_install: true,
        apt_compiler: Some((1, 96)),
        apt_llvm: vec![22],
        ..Facts::default()
    }
}

fn packages(names: &[&str]) -> Choice {
    Choice::InstallPackages(names.iter().map(|name| (*name).to_owned()).collect())
}

fn uses(compiler: Compiler) -> Choice {
    let linker = linker(22);
    Choice::Use { compiler, linker }
}

#[rstest]
#[case::nightly_with_source_and_a_fitting_linker_comes_first(
    Facts { compilers: vec![debian(), nightly()], linkers: vec![linker(22)], ..fresh_debian() },
    uses(nightly())
)]
#[case::nightly_without_its_source_gives_way_to_debians_compiler(
    Facts {
        compilers: vec![nightly_without_source(), debian()], linkers: vec![linker(22)], ..Facts::default()
    },
    uses(debian())
)]
#[case::a_ready_pair_wins_over_a_nightly_whose_linker_would_have_to_be_built(
    Facts {
        compilers: vec![newer_nightly(), debian()], linkers: vec![linker(22)], llvm_dev: vec![23], ..fresh_debian()
    },
    uses(debian())
)]
#[case::a_linker_of_an_older_llvm_or_release_does_not_fit(
    Facts {
        compilers: vec![debian()], linkers: vec![linker(21), old_linker()], llvm_dev: vec![21, 22, 23], ..Facts::default()
    },
    Choice::BuildLinker { llvm: 22 }
)]
#[case::a_nightly_whose_llvm_apt_has_not_does_not_keep_debians_compiler_out(
    Facts { compilers: vec![newer_nightly()], ..fresh_debian() },
    packages(&COMPILER_PACKAGES)
)]
fn setup_chooses_its_next_step_by_what_is_installed(
    #[case] facts: Facts,
    #[case] expected: Choice,
) {
    assert_eq!(choose(&facts), expected);
}

#[rstest]
#[case::a_compiler_that_is_too_old_is_not_installed(
    Facts { apt_compiler: Some((1, 85)), lists_updated: true, ..fresh_debian() }
)]
#[case::packages_are_not_installed_twice(
    Facts { installed: COMPILER_PACKAGES.map(str::to_owned).to_vec(), lists_updated: true, ..fresh_debian() }
)]
fn setup_is_impossible_if_no_package_can_help(#[case] facts: Facts) {
    assert!(matches!(choose(&facts), Choice::Impossible(_)));
}

fn impossible(facts: &Facts) -> Vec<String> {
    match choose(facts) {
        Choice::Impossible(lines) => lines,
        choice => panic!("{choice:?} was chosen"),
    }
}

#[test]
fn a_statically_linked_linker_is_tried_and_replaced_when_it_fails() {
    let mut facts = Facts {
        compilers: vec![debian()],
        linkers: vec![own("/bin/bpf-linker", None)],
        llvm_dev: vec![22],
        ..Facts::default()
    };
    assert!(matches!(choose(&facts), Choice::Use { .. }));
    let pair = (debian().rustc, "/bin/bpf-linker".into());
    facts.ruled_out.push(pair);
    assert_eq!(choose(&facts), Choice::BuildLinker { llvm: 22 });
}

#[test]
fn a_fresh_debian_gets_the_compiler_then_llvm_then_the_linker() {
    let mut facts = fresh_debian();
    assert_eq!(choose(&facts), packages(&COMPILER_PACKAGES));
    facts.installed.extend(COMPILER_PACKAGES.map(str::to_owned));
    facts.compilers.push(debian());
    let llvm = "llvm-22-dev libpolly-22-dev libzstd-dev zlib1g-dev".split(' ');
    assert_eq!(choose(&facts), packages(&llvm.clone().collect::<Vec<_>>()));
    facts.installed.extend(llvm.map(str::to_owned));
    facts.llvm_dev.push(22);
    assert_eq!(choose(&facts), Choice::BuildLinker { llvm: 22 });
}

#[test]
fn apt_lists_are_updated_once_before_setup_fails() {
    let mut facts = Facts {
        apt_compiler: None,
        apt_llvm: Vec::new(),
        ..fresh_debian()
    };
    assert_eq!(choose(&facts), Choice::UpdateLists);
    facts.lists_updated = true;
    assert!(matches!(choose(&facts), Choice::Impossible(_)));
}

#[test]
fn without_root_the_missing_compiler_and_linker_are_both_named() {
    let facts = Facts {
        can_install: false,
        ..fresh_debian()
    };
    let text = impossible(&facts).join("\n");
    for wanted in "rustc-web libstd-rust-web-dev-bpf rust-src bpf-linker llvm-22-dev".split(' ') {
        assert!(text.contains(wanted), "{wanted} is not in: {text}");
    }
}

#[test]
fn with_a_usable_compiler_only_the_linker_is_named_as_missing() {
    let facts = Facts {
        compilers: vec![nightly()],
        ..Facts::default()
    };
    let lines = impossible(&facts);
    assert_eq!(lines.len(), 1);
    assert!(lines[0].contains("features llvm-22"), "{}", lines[0]);
}
