// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs cargo on other packages of the workspace. Used by every command of xtask.

use std::{
    collections::BTreeSet,
    env,
    ffi::OsStr,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail, ensure};

use crate::host;

/// The only package of the workspace that the host's compiler cannot build.
pub(crate) const KERNEL_PACKAGE: &str = "proxy-ebpf";
/// The package of the agent.
pub(crate) const AGENT_PACKAGE: &str = "proxy-user";
/// The name of the agent's binary.
const AGENT_PROGRAM: &str = "portolan";
/// The package of the simulated nodes, and of the programs that use the agent only from outside.
const LAB_PACKAGE: &str = "lab";

/// cargo arguments that select the packages whose tests, examples and benches xtask runs. Always
/// both: with another selection cargo would choose other features, and build most dependencies once
/// more.
pub(crate) const TESTED_PACKAGES: [&str; 4] =
    ["--package", AGENT_PACKAGE, "--package", LAB_PACKAGE];

/// cargo arguments that select every package that the host's compiler can build.
pub(crate) const HOST_PACKAGES: [&str; 3] = ["--workspace", "--exclude", KERNEL_PACKAGE];

/// Returns the root folder of the git clone that xtask was built from.
pub(crate) fn root() -> PathBuf {
    let member = Path::new(env!("CARGO_MANIFEST_DIR"));
    member.parent().unwrap_or(member).to_owned()
}

/// Returns the path of the cargo that runs xtask, else `cargo`, to be found in PATH.
pub(crate) fn path() -> PathBuf {
    env::var_os("CARGO")
        .map(PathBuf::from)
        .or_else(|| host::find_program("cargo"))
        .unwrap_or_else(|| "cargo".into())
}

/// Returns a cargo command for the host that runs in the root folder of the clone. Removes the
/// variables that `cargo run` has set for xtask, because build scripts of other packages would read
/// them.
pub(crate) fn cargo(subcommand: &str) -> Command {
    let mut command = Command::new(path());
    command.arg(subcommand).current_dir(root());
    for (name, _) in env::vars_os() {
        if is_about_this_package(&name) {
            command.env_remove(name);
        }
    }
    command
}

/// Returns true if `cargo run` sets the variable `name` for the package that it runs.
pub(crate) fn is_about_this_package(name: &OsStr) -> bool {
    let Some(name) = name.to_str() else {
        return false;
    };
    name.starts_with("CARGO_PKG_")
        || name.starts_with("CARGO_BIN_EXE_")
        || matches!(
            name,
            "CARGO_MANIFEST_DIR"
                | "CARGO_MANIFEST_PATH"
                | "CARGO_MANIFEST_LINKS"
                | "CARGO_BIN_NAME"
                | "CARGO_CRATE_NAME"
                | "CARGO_PRIMARY_PACKAGE"
                | "OUT_DIR"
        )
}

/// Runs a command to its end; an error begins with `what`.
pub(crate) fn check(command: &mut Command, what: &str) -> Result<()> {
    let status = command
        .status()
        .with_context(|| format!("{what}: start {}", command.get_program().to_string_lossy()))?;
    ensure!(status.success(), "{what}: {status}, see above");
    Ok(())
}

/// Runs a command without showing its output, and returns its stdout. An error begins with `what`
/// and contains the command's stderr.
pub(crate) fn output(command: &mut Command, what: &str) -> Result<String> {
    let output = command
        .output()
        .with_context(|| format!("{what}: start {}", command.get_program().to_string_lossy()))?;
    if !output.status.success() {
        bail!(
            "{what}: {}: {}",
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    String::from_utf8(output.stdout).with_context(|| format!("{what}: the answer is not UTF-8"))
}

/// Builds the agent's program and one program of the package `lab`, which searches the agent's in
/// its own folder. `target` selects the lab's program, for example `["--bench", "connect"]`.
pub(crate) fn build_with_agent(target: [&str; 2], release: bool) -> Result<()> {
    let mut command = cargo("build");
    command
        .arg("--locked")
        .args(TESTED_PACKAGES)
        .args(["--bin", AGENT_PROGRAM])
        .args(target)
        .args(release.then_some("--release"));
    check(&mut command, "build the agent")
}

/// Builds the integration test `target` and returns the path of its program.
pub(crate) fn build_test(target: &str) -> Result<PathBuf> {
    build_test_by(target, |_| ())
}

/// Does the same as `build_test`; `add` adds arguments to cargo's command.
pub(crate) fn build_test_by(target: &str, add: impl FnOnce(&mut Command)) -> Result<PathBuf> {
    let what = format!("build the test program {target}");
    let mut command = cargo("test");
    add(&mut command);
    let output = command
        .args(["--no-run", "--locked"])
        .args(TESTED_PACKAGES)
        .args([
            "--test",
            target,
            "--message-format",
            "json-render-diagnostics",
        ])
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("{what}: start cargo"))?;
    ensure!(
        output.status.success(),
        "{what}: {}, see above",
        output.status
    );
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .find_map(|line| executable(line, target))
        .with_context(|| format!("{what}: cargo's output does not name the program"))
}

/// Returns the path in a line of cargo's JSON output, None if it is not about the test `target`.
fn executable(message: &str, target: &str) -> Option<PathBuf> {
    let message: serde_json::Value = serde_json::from_str(message).ok()?;
    let is_it = message["target"]["name"] == target && message["target"]["kind"][0] == "test";
    let path = message["executable"].as_str()?;
    is_it.then(|| path.into())
}

/// The workspace in the JSON form of `cargo metadata`.
pub(crate) struct Workspace(serde_json::Value);

impl Workspace {
    pub(crate) fn read() -> Result<Self> {
        let text = output(
            cargo("metadata").args(["--no-deps", "--locked", "--format-version", "1"]),
            "read the workspace",
        )?;
        Ok(Self(
            serde_json::from_str(&text).context("read the workspace: parse the answer")?,
        ))
    }

    /// Returns the folder that cargo builds into.
    pub(crate) fn target_directory(&self) -> PathBuf {
        self.0["target_directory"]
            .as_str()
            .map_or_else(|| root().join("target"), PathBuf::from)
    }

    fn packages(&self) -> impl Iterator<Item = &serde_json::Value> {
        self.0["packages"].as_array().into_iter().flatten()
    }

    /// Returns the name of each package of the workspace and the folder of its manifest.
    pub(crate) fn folders(&self) -> Vec<(String, PathBuf)> {
        let folder = |package: &serde_json::Value| {
            let manifest = Path::new(package["manifest_path"].as_str()?).parent()?;
            Some((package["name"].as_str()?.to_owned(), manifest.to_owned()))
        };
        self.packages().filter_map(folder).collect()
    }

    /// Returns the crates outside of the workspace that a source file may name: those of the
    /// standard library, and every dependency.
    pub(crate) fn foreign_crates(&self) -> BTreeSet<String> {
        let own: Vec<_> = self.packages().map(|package| &package["name"]).collect();
        self.packages()
            .flat_map(|package| package["dependencies"].as_array().into_iter().flatten())
            .map(|dependency| &dependency["name"])
            .filter(|name| !own.contains(name))
            .filter_map(serde_json::Value::as_str)
            .chain(["std", "core", "alloc"])
            .map(|name| name.replace('-', "_"))
            .collect()
    }

    /// Returns the names of a package's cargo targets of one kind (`test`, `bench`, `example`).
    pub(crate) fn targets(&self, package: &str, kind: &str) -> Vec<String> {
        self.packages()
            .filter(|candidate| candidate["name"] == package)
            .flat_map(|package| package["targets"].as_array().into_iter().flatten())
            .filter(|target| {
                target["kind"]
                    .as_array()
                    .is_some_and(|kinds| kinds.iter().any(|k| k == kind))
            })
            .filter_map(|target| target["name"].as_str().map(str::to_owned))
            .collect()
    }

    /// Returns the names of all packages' integration tests.
    pub(crate) fn test_targets(&self) -> Vec<String> {
        self.packages()
            .filter_map(|package| package["name"].as_str())
            .flat_map(|package| self.targets(package, "test"))
            .collect()
    }

    /// Returns the names of a package's dependencies, without those of its tests and build script.
    pub(crate) fn dependencies(&self, package: &str) -> Vec<String> {
        self.packages()
            .filter(|candidate| candidate["name"] == package)
            .flat_map(|package| package["dependencies"].as_array().into_iter().flatten())
            .filter(|dependency| dependency["kind"].is_null())
            .filter_map(|dependency| dependency["name"].as_str().map(str::to_owned))
            .collect()
    }

    /// Fails if neither the agent's nor the lab's package has the cargo target `name` of this kind.
    pub(crate) fn require(&self, kind: &str, name: &str) -> Result<()> {
        let packages = [AGENT_PACKAGE, LAB_PACKAGE];
        let found = packages.map(|package| self.targets(package, kind)).concat();
        ensure!(
            found.iter().any(|target| target == name),
            "there is no {kind} named \"{name}\" in this clone (there are: {})",
            if found.is_empty() {
                "none".to_owned()
            } else {
                found.join(", ")
            }
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_program_is_told_from_others_that_cargo_has_built() {
        let message = |kind: &str| {
            format!(
                r#"{{"reason":"compiler-artifact","target":{{"kind":["{kind}"],"name":"conformance"}},"executable":"/t/c"}}"#
            )
        };
        assert_eq!(
            executable(&message("test"), "conformance"),
            Some("/t/c".into())
        );
        assert_eq!(executable(&message("test"), "packet"), None);
        assert_eq!(executable(&message("bin"), "conformance"), None);
        assert_eq!(executable("not a message", "conformance"), None);
    }

    #[test]
    fn what_cargo_run_says_about_xtask_is_told_from_settings() {
        for name in [
            "CARGO_MANIFEST_DIR",
            "CARGO_PKG_NAME",
            "CARGO_BIN_EXE_portolan",
        ] {
            assert!(is_about_this_package(OsStr::new(name)), "{name}");
        }
        for name in [
            "CARGO_HOME",
            "CARGO_TARGET_DIR",
            "CARGO_NET_OFFLINE",
            "RUSTFLAGS",
            "CARGO",
        ] {
            assert!(!is_about_this_package(OsStr::new(name)), "{name}");
        }
    }
}
