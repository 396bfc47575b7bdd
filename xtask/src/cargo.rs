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

use crate::{command, host, summary::Budget};

/// The only package of the workspace that the host's compiler cannot build.
pub(crate) const KERNEL_PACKAGE: &str = "proxy-ebpf";
/// The package of the agent.
pub(crate) const AGENT_PACKAGE: &str = "proxy-user";
/// The name of the agent's binary.
const AGENT_PROGRAM: &str = "portolan";

/// cargo arguments that select every package that the host's compiler can build. Always the same
/// ones: with others cargo would choose other features, and build most dependencies once more.
pub(crate) const HOST_PACKAGES: [&str; 3] = ["--workspace", "--exclude", KERNEL_PACKAGE];

/// Returns the root folder of the git clone that xtask was built from.
pub(crate) fn root() -> PathBuf {
    let member = Path::new(env!("CARGO_MANIFEST_DIR"));
    member.parent().unwrap_or(member).to_owned()
}

/// Returns the path of the cargo that runs xtask, else `cargo`, to be found in PATH.
pub(crate) fn path() -> PathBuf {
    let cargo = env::var_os("CARGO").map(PathBuf::from);
    let cargo = cargo.or_else(|| host::find_program("cargo"));
    cargo.unwrap_or_else(|| "cargo".into())
}

/// Returns a cargo command for the host that runs in the root folder of the clone, without the
/// variables that `cargo run` has set for xtask: build scripts of other packages would read them.
pub(crate) fn cargo(subcommand: &str) -> Command {
    let mut command = Command::new(path());
    command.arg(subcommand).current_dir(root());
    remove_own_variables(&mut command);
    command
}

/// Returns what git, which gets the words of a text, prints about the clone.
pub(crate) fn git(words: &str) -> Result<String> {
    // git refuses another user's clone, which is usual in a container.
    let mut command = command::of("git", "-c safe.directory=*");
    command
        .args(words.split(' '))
        .current_dir(root())
        .env("TZ", "UTC");
    let what = "ask git (this needs git and a clone)";
    Ok(command::output(&mut command, what)?.trim().to_owned())
}

/// Removes the variables that `cargo run` has set for xtask.
pub(crate) fn remove_own_variables(command: &mut Command) {
    for (name, _) in env::vars_os().filter(|(name, _)| is_about_this_package(name)) {
        command.env_remove(name);
    }
}

/// Returns true if `cargo run` sets the variable `name` for the package that it runs.
fn is_about_this_package(name: &OsStr) -> bool {
    let starts =
        "CARGO_PKG_ CARGO_BIN_ CARGO_MANIFEST_ CARGO_CRATE_NAME CARGO_PRIMARY_PACKAGE OUT_DIR";
    let name = name.to_string_lossy();
    starts.split(' ').any(|start| name.starts_with(start))
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

/// Returns cargo's command that runs a program, such as `--bench compare`; its arguments follow.
pub(crate) fn program(subcommand: &str, kind: &str, name: &str) -> Command {
    let mut command = cargo(subcommand);
    command
        .arg("--locked")
        .args(HOST_PACKAGES)
        .args([kind, name, "--"]);
    command
}

/// Builds the integration test `target` and returns its program's path. `add` adds arguments.
pub(crate) fn build_test(target: &str, add: impl FnOnce(&mut Command)) -> Result<PathBuf> {
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

    /// Returns the name of each package of the workspace and its folder in the clone.
    pub(crate) fn folders(&self) -> Vec<(String, String)> {
        let folder = |package: &Value| {
            let manifest = Path::new(package["manifest_path"].as_str()?).parent()?;
            let folder = manifest.strip_prefix(root()).ok()?.to_str()?;
            Some((package["name"].as_str()?.to_owned(), folder.to_owned()))
        };
        self.packages().filter_map(folder).collect()
    }

    /// Returns a number of `[package.metadata.budget]`; 0 if the package does not have it.
    pub(crate) fn budget(&self, package: &str, key: &str) -> usize {
        let number = &self.package(package)["metadata"]["budget"][key];
        number.as_u64().unwrap_or(0) as usize
    }

    /// Returns the budget of a stage of `cargo xtask test`, by the stage's name or its first word.
    pub(crate) fn stage_budget(&self, stage: &str) -> Budget {
        let budgets = &self.0["metadata"]["budget"];
        let first = stage.split(' ').next().unwrap_or_default();
        let budget = budgets.get(stage).unwrap_or(&budgets[first]);
        let number = |key: &str| budget[key].as_u64().unwrap_or(0);
        let (seconds, agents) = (number("seconds"), number("agents"));
        Budget { seconds, agents }
    }

    /// Returns the names of all packages' integration tests.
    pub(crate) fn test_targets(&self) -> Vec<String> {
        let targets = self
            .packages()
            .flat_map(|package| elements(&package["targets"]));
        names(targets.filter(|target| elements(&target["kind"]).any(|kind| kind == "test")))
    }

    /// Returns the names of a package's dependencies, without those of its tests and build script.
    pub(crate) fn dependencies(&self, package: &str) -> Vec<String> {
        let dependencies = elements(&self.package(package)["dependencies"]);
        names(dependencies.filter(|dependency| dependency["kind"].is_null()))
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
