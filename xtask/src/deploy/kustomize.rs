// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Renders kustomize overlays: those in `deploy/`, and those that users derive from them.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tempfile::TempDir;

use super::{
    equal::{self, MARK, Objects},
    folder,
};
use crate::{command, fs};

/// kubectl for subcommands that need no API server.
pub(super) struct Kubectl {
    program: PathBuf,
}

impl Kubectl {
    pub(super) fn new(program: PathBuf) -> Self {
        Self { program }
    }

    /// Returns the objects that the kustomization.yaml in a folder renders.
    pub(super) fn kustomize(&self, folder: &Path) -> Result<Objects> {
        let mut command = Command::new(&self.program);
        command.arg("kustomize").arg(folder);
        let what = format!("kustomize {}", folder.display());
        self.parse(&command::output(&mut command, &what)?)
    }

    /// Returns the objects that `text`, as the kustomization.yaml of a temporary folder, renders.
    pub(super) fn kustomization(&self, text: &str) -> Result<Objects> {
        let place = TempDir::with_prefix("portolan-kustomization-").context("make a folder")?;
        fs::write(place.path().join("kustomization.yaml"), text)?;
        self.kustomize(place.path())
    }

    /// Parses the YAML of several objects. kubectl does it, because xtask has no YAML parser.
    pub(super) fn parse(&self, yaml: &str) -> Result<Objects> {
        let mut command = command::of(&self.program, "annotate --local -o json -f -");
        command.arg(format!("{MARK}=yes"));
        let json = command::output_of(&mut command, yaml, "read objects by kubectl")
            .with_context(|| format!("kubectl cannot read:\n{yaml}"))?;
        let values = serde_json::Deserializer::from_str(&json).into_iter::<Value>();
        values.map(|value| Ok(equal::entry(value?))).collect()
    }
}

/// Returns the relative path from a new temporary folder to `folder`, as kustomize needs it.
pub(super) fn from_tmp(folder: &Path) -> String {
    let up = "../".repeat(std::env::temp_dir().components().count());
    format!(
        "{up}{}",
        folder.display().to_string().trim_start_matches('/')
    )
}

/// Returns a user's kustomization.yaml with the overlay `base` and the user's own API server
/// address, setting and image.
fn own(base: &str) -> String {
    format!(
        "resources: ['{base}']
configMapGenerator:
  - name: portolan
    namespace: kube-system
    behavior: merge
    literals:
      - |
        config.conf=apiVersion: kubeproxy.config.k8s.io/v1alpha1
        kind: KubeProxyConfiguration
        clusterCIDR: 10.99.0.0/16
images:
  - {{name: portolan, newName: registry.example/portolan, newTag: 9.9.9}}
patches:
  - target: {{kind: DaemonSet, name: portolan}}
    patch: |
      - {{op: replace, path: /spec/template/spec/containers/0/args/4, value: '--master=https://198.51.100.7:6443'}}
"
    )
}

fn has_what_the_user_wants(objects: &Objects) -> Result<()> {
    let object = |kind: &str, name: &str| objects.get(&(kind.to_owned(), name.to_owned()));
    let daemon_set = object("DaemonSet", "portolan").context("there is no DaemonSet")?;
    let pod = &daemon_set["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    let address = &container["args"][4];
    ensure!(
        address == "--master=https://198.51.100.7:6443",
        "the address: {address}"
    );
    for container in [container, &pod["initContainers"][0]] {
        let image = &container["image"];
        ensure!(
            image == "registry.example/portolan:9.9.9",
            "the image: {image}"
        );
    }
    let name = pod["volumes"][2]["configMap"]["name"].as_str();
    let map = object("ConfigMap", name.context("a ConfigMap's name")?);
    let map = map.with_context(|| format!("the pod's ConfigMap {name:?} is missing"))?;
    let text = map["data"]["config.conf"].as_str().unwrap_or_default();
    ensure!(text.contains("10.99.0.0/16"), "the setting: {text}");
    Ok(())
}

pub(super) fn from_elsewhere(kubectl: &Kubectl) -> Result<()> {
    let base = from_tmp(&folder("overlays/bare"));
    has_what_the_user_wants(&kubectl.kustomization(&own(&base))?)
}

/// Tests that kustomize can fetch an overlay as from
/// `https://HOST/REPOSITORY//deploy/overlays/bare?ref=TAG`: by git, with a tag and a folder.
pub(super) fn by_git(kubectl: &Kubectl) -> Result<()> {
    let repository = TempDir::with_prefix("portolan-remote-").context("make a repository")?;
    let at = repository.path();
    let git = |arguments: &[&str]| {
        let mut command = Command::new("git");
        command
            .current_dir(at)
            .args(["-c", "user.name=test", "-c", "user.email=test@example.org"])
            .args(["-c", "init.defaultBranch=main"])
            .args(arguments);
        command::output(&mut command, &format!("git {}", arguments.join(" ")))
    };
    git(&["init", "--quiet"])?;
    let mut copy = Command::new("cp");
    copy.arg("--recursive").arg(folder("")).arg(at);
    command::output(&mut copy, "copy deploy")?;
    git(&["add", "."])?;
    git(&["commit", "--quiet", "--message", "deploy"])?;
    git(&["tag", "v9"])?;
    // The commit after the tag has no overlays, so the test fails if kustomize ignores the tag.
    fs::remove_dir_all(&at.join("deploy/overlays"))?;
    git(&["commit", "--quiet", "--all", "--message", "without"])?;
    let base = |tag: &str| format!("file://{}//deploy/overlays/bare?ref={tag}", at.display());
    has_what_the_user_wants(&kubectl.kustomization(&own(&base("v9")))?)?;
    let without_tag = kubectl.kustomization(&own(&base("main")));
    ensure!(without_tag.is_err(), "the tag is not regarded");
    Ok(())
}
