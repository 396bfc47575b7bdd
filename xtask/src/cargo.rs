// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs cargo on other packages of the workspace. Used by every command of xtask.

use std::{
    env,
    ffi::OsStr,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::{command, host};

/// The only package of the workspace that the host's compiler cannot build.
pub(crate) const KERNEL_PACKAGE: &str = "proxy-ebpf";
/// The package of the agent.
pub(crate) const AGENT_PACKAGE: &str = "proxy-user";
/// The name of the agent's binary.
const AGENT_PROGRAM: &str = "portolan";
/// The package of the simulated nodes, and of the programs that use the agent only from outside.
const LAB_PACKAGE: &str = "lab";

/// cargo arguments that select every package that the host's compiler can build. Always the same
/// ones: with another selection cargo would choose other features, and build most dependencies once
/// more.
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

/// Returns a cargo command for the host that runs in the root folder of the clone, without the
/// variables that `cargo run` has set for xtask: build scripts of other packages would read them.
pub(crate) fn cargo(subcommand: &str) -> Command {
    let mut command = Command::new(path());
    command.arg(subcommand).current_dir(root());
    remove_own_variables(&mut command);
    command
}

/// Removes the variables that `cargo run` has set for xtask.
pub(crate) fn remove_own_variables(command: &mut Command) {
    for (name, _) in env::vars_os().filter(|(name, _)| is_about_this_package(name)) {
        command.env_remove(name);
    }
}

/// Returns true if `cargo run` sets the variable `name` for the package that it runs.
fn is_about_this_package(name: &OsStr) -> bool {
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

/// Builds the agent's program and one program of the package `lab`, which searches the agent's in
/// its own folder. `target` selects the lab's program, for example `["--bench", "compare"]`.
pub(crate) fn build_with_agent(target: [&str; 2], release: bool) -> Result<()> {
    let mut command = cargo("build");
    command
        .arg("--locked")
        .args(HOST_PACKAGES)
        .args(["--bin", AGENT_PROGRAM])
        .args(target)
        .args(release.then_some("--release"));
    command::check(&mut command, "build the agent")
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
        .args(["--no-run", "--locked", "--test", target])
        .args(HOST_PACKAGES)
        .args(["--message-format", "json-render-diagnostics"])
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("{what}: start cargo"))?;
    let status = output.status;
    ensure!(status.success(), "{what}: {status}, see above");
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .find_map(|line| executable(line, target))
        .with_context(|| format!("{what}: cargo's output does not name the program"))
}

/// Returns the path in a line of cargo's JSON output, None if it is not about the test `target`.
fn executable(message: &str, target: &str) -> Option<PathBuf> {
    let message: Value = serde_json::from_str(message).ok()?;
    let is_it = message["target"]["name"] == target && message["target"]["kind"][0] == "test";
    let path = message["executable"].as_str()?;
    is_it.then(|| path.into())
}

/// The workspace in the JSON form of `cargo metadata`.
pub(crate) struct Workspace(Value);

impl Workspace {
    pub(crate) fn read() -> Result<Self> {
        let mut command = cargo("metadata");
        command.args(["--no-deps", "--locked", "--format-version", "1"]);
        let text = command::output(&mut command, "read the workspace")?;
        let workspace = serde_json::from_str(&text);
        Ok(Self(workspace.context("read the workspace")?))
    }

    /// Returns the folder that cargo builds into.
    pub(crate) fn target_directory(&self) -> PathBuf {
        self.0["target_directory"]
            .as_str()
            .map_or_else(|| root().join("target"), PathBuf::from)
    }

    fn packages(&self) -> impl Iterator<Item = &Value> {
        elements(&self.0["packages"])
    }

    fn package(&self, name: &str) -> &Value {
        let mut packages = self.packages();
        packages
            .find(|package| package["name"] == name)
            .unwrap_or(&Value::Null)
    }

    /// Returns the name of each package of the workspace and the folder of its manifest.
    pub(crate) fn folders(&self) -> Vec<(String, PathBuf)> {
        let folder = |package: &Value| {
            let manifest = Path::new(package["manifest_path"].as_str()?).parent()?;
            Some((package["name"].as_str()?.to_owned(), manifest.to_owned()))
        };
        self.packages().filter_map(folder).collect()
    }

    /// Returns a number of `[package.metadata.budget]`; 0 if the package does not have it.
    pub(crate) fn budget(&self, package: &str, key: &str) -> usize {
        let number = &self.package(package)["metadata"]["budget"][key];
        number.as_u64().unwrap_or(0) as usize
    }

    /// Returns the names of a package's cargo targets of one kind (`test`, `bench`, `example`).
    pub(crate) fn targets(&self, package: &str, kind: &str) -> Vec<String> {
        let targets = elements(&self.package(package)["targets"]);
        names(targets.filter(|target| elements(&target["kind"]).any(|found| found == kind)))
    }

    /// Returns the names of all packages' integration tests.
    pub(crate) fn test_targets(&self) -> Vec<String> {
        let packages = names(self.packages()).into_iter();
        packages
            .flat_map(|package| self.targets(&package, "test"))
            .collect()
    }

    /// Returns the names of a package's dependencies, without those of its tests and build script.
    pub(crate) fn dependencies(&self, package: &str) -> Vec<String> {
        let dependencies = elements(&self.package(package)["dependencies"]);
        names(dependencies.filter(|dependency| dependency["kind"].is_null()))
    }

    /// Returns cargo's command for one target of the tested packages, such as `--bench compare`; it
    /// fails if there is no such target. The program's own arguments are to be added.
    pub(crate) fn command(&self, subcommand: &str, kind: &str, name: &str) -> Result<Command> {
        self.require(kind, name)?;
        let mut command = cargo(subcommand);
        command
            .arg("--locked")
            .args(HOST_PACKAGES)
            .args([&format!("--{kind}"), name, "--"]);
        Ok(command)
    }

    /// Fails if neither the agent's nor the lab's package has the cargo target `name` of this kind.
    pub(crate) fn require(&self, kind: &str, name: &str) -> Result<()> {
        let packages = [AGENT_PACKAGE, LAB_PACKAGE];
        let found = packages.map(|package| self.targets(package, kind)).concat();
        ensure!(
            found.iter().any(|target| target == name),
            "there is no {kind} named \"{name}\" in this clone (there are: {found:?})"
        );
        Ok(())
    }
}

fn elements(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

/// Returns the names of packages, targets or dependencies.
fn names<'a>(things: impl Iterator<Item = &'a Value>) -> Vec<String> {
    let names = things.filter_map(|thing| thing["name"].as_str());
    names.map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_of_cargo_run_and_cargo_settings_are_distinguished() {
        for (names, expected) in [
            (
                "CARGO_MANIFEST_DIR CARGO_PKG_NAME CARGO_BIN_EXE_portolan",
                true,
            ),
            (
                "CARGO_HOME CARGO_TARGET_DIR CARGO_NET_OFFLINE RUSTFLAGS CARGO",
                false,
            ),
        ] {
            for name in names.split(' ') {
                assert_eq!(is_about_this_package(OsStr::new(name)), expected, "{name}");
            }
        }
    }
}
