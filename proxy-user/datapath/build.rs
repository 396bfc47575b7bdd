// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Compiles the kernel programs into BPF object files, which the module `programs` embeds.
//!
//! `cargo xtask setup` finds or builds the compiler and the linker and writes their paths into a
//! file of the per-user cache. Why aya-build is not used: docs/dev/decisions.md.

use std::{
    collections::HashMap,
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

const TARGET: &str = "bpfel-unknown-none";

fn main() {
    let root =
        PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it")).join("../..");
    for path in ["proxy-ebpf", "proxy-common/src", "Cargo.lock"] {
        println!("cargo::rerun-if-changed={}", root.join(path).display());
    }
    for name in ["PORTOLAN_TOOLCHAIN_FILE", "XDG_CACHE_HOME", "HOME"] {
        println!("cargo::rerun-if-env-changed={name}");
    }

    let file = toolchain_file();
    println!("cargo::rerun-if-changed={}", file.display());
    let tools = read_toolchain(&file);
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    let target_dir = out.join("ebpf");
    let tool = |name| {
        tools.get(name).map(String::as_str).unwrap_or_else(|| {
            panic!(
                "{} has no line for {name}; run `cargo xtask setup`, which writes the file anew",
                file.display()
            )
        })
    };
    let mut command = Command::new(tool("cargo"));
    command
        .args("build --package proxy-ebpf --release --locked".split(' '))
        .args(["--target", TARGET])
        .args(env::var_os("CARGO_FEATURE_NEXT_LAYOUT").map(|_| "--features=next-layout"))
        .args(tools.get("build-std").map(|_| "-Zbuild-std=core"))
        .arg("--target-dir")
        .arg(&target_dir)
        .current_dir(&root)
        .env("RUSTC", tool("rustc"))
        .env(
            "CARGO_ENCODED_RUSTFLAGS",
            [
                "-Cdebuginfo=2",
                "-Clink-arg=--btf",
                // 32-bit registers and jumps, known to every kernel since 5.10, save pairs of
                // shifts.
                "-Ctarget-cpu=v3",
                &format!("-Clinker={}", tool("linker")),
                "-Cpanic=abort",
            ]
            .join("\x1f"),
        )
        .env("CARGO_PROFILE_RELEASE_LTO", "true")
        .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "1")
        .env("CARGO_PROFILE_RELEASE_DEBUG", "2")
        .env("CARGO_PROFILE_RELEASE_PANIC", "abort");
    // Not a nightly compiler: allow unstable features, for the crates of the kernel programs only.
    // A plain 1 would allow them for cargo as well.
    if !tools.contains_key("build-std") {
        command.env(
            "RUSTC_BOOTSTRAP",
            "aya_ebpf,aya_log_ebpf,portolan,portolan_follow,portolan_trace,proxy_ebpf",
        );
    }
    for inherited in [
        "RUSTFLAGS",
        "RUSTC_WRAPPER",
        "RUSTC_WORKSPACE_WRAPPER",
        "CLIPPY_ARGS",
        "RUSTUP_TOOLCHAIN",
    ] {
        command.env_remove(inherited);
    }
    let status = command.status().unwrap_or_else(|error| {
        panic!(
            "cannot start {}: {error}; run `cargo xtask setup`, which finds the toolchain anew",
            tool("cargo")
        )
    });
    assert!(
        status.success(),
        "building the kernel programs failed; the errors are above"
    );
    for name in ["portolan", "portolan-follow", "portolan-trace"] {
        let built = target_dir.join(TARGET).join("release").join(name);
        fs::copy(built, out.join(format!("{name}.bpf.o"))).expect("copy the object");
    }
}

fn toolchain_file() -> PathBuf {
    if let Some(file) = env::var_os("PORTOLAN_TOOLCHAIN_FILE") {
        return file.into();
    }
    let cache = env::var_os("XDG_CACHE_HOME")
        .filter(|folder| !folder.is_empty())
        .map(PathBuf::from)
        .unwrap_or_else(|| Path::new(&env::var_os("HOME").expect("HOME is set")).join(".cache"));
    cache.join("portolan/toolchain")
}

/// Reads the toolchain file: lines `key=value` with the paths of cargo, rustc and linker. The key
/// build-std is there if the compiler has no precompiled `core` for the BPF target.
fn read_toolchain(file: &Path) -> HashMap<String, String> {
    let text = fs::read_to_string(file).unwrap_or_else(|error| {
        panic!(
            "{}: {error}; run `cargo xtask setup`, which finds or installs the BPF toolchain",
            file.display()
        )
    });
    text.lines()
        .filter_map(|line| line.split_once('='))
        .map(|(key, value)| (key.trim().to_owned(), value.trim().to_owned()))
        .collect()
}
