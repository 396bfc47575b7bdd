// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests the objects of the chart and of the folders in `deploy/`, rendered by helm and kubectl.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::folder;
use crate::{cargo, command, fs};

/// Kubernetes objects. Key: kind and name.
pub(super) type Objects = BTreeMap<(String, String), Value>;

/// An annotation by which kubectl is made to print objects as JSON, and that `entry` removes.
const MARK: &str = "portolan.dev/read";
/// Labels by which helm finds its objects, and the annotation by which it replaces pods.
const HELMS: [&str; 5] = [
    MARK,
    "app.kubernetes.io/instance",
    "app.kubernetes.io/managed-by",
    "helm.sh/chart",
    "checksum/config",
];

/// kubectl for subcommands that need no API server.
pub(super) struct Kubectl(pub(super) PathBuf);

impl Kubectl {
    /// Returns the objects that the kustomization.yaml in a folder renders.
    pub(super) fn kustomize(&self, folder: &Path) -> Result<Objects> {
        let what = format!("kustomize {}", folder.display());
        let mut command = command::of(&self.0, "kustomize");
        self.parse(&command::output(command.arg(folder), &what)?)
    }

    /// Parses the YAML of several objects. kubectl does it, because xtask has no YAML parser.
    pub(super) fn parse(&self, yaml: &str) -> Result<Objects> {
        let mut command = command::of(&self.0, "annotate --local -o json -f -");
        command.arg(format!("{MARK}=yes"));
        let json = command::output_of(&mut command, yaml, "read objects by kubectl")?;
        let values = serde_json::Deserializer::from_str(&json).into_iter::<Value>();
        values.map(|value| Ok(entry(value?))).collect()
    }
}

/// Returns the object's key, and the object without what `parse` or helm has added.
fn entry(mut object: Value) -> ((String, String), Value) {
    for pointer in ["/metadata", "/spec/template/metadata"] {
        let Some(metadata) = object.pointer_mut(pointer).and_then(Value::as_object_mut) else {
            continue;
        };
        for map in ["annotations", "labels"] {
            if let Some(entries) = metadata.get_mut(map).and_then(Value::as_object_mut) {
                entries.retain(|name, _| !HELMS.contains(&name.as_str()));
            }
        }
        metadata.retain(|_, value| value.as_object().is_none_or(|map| !map.is_empty()));
    }
    let key = (text(&object["kind"]), text(&object["metadata"]["name"]));
    (key, object)
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// The values that the chart requires on a cluster without kubeadm, as one argument of `--set`.
pub(super) const ADDRESS: &str =
    "apiServer=https://192.0.2.1:6443,settings.clusterCIDR=10.244.0.0/16";

pub(super) struct Helm {
    program: PathBuf,
    home: TempDir,
}

impl Helm {
    pub(super) fn new(program: PathBuf) -> Result<Self> {
        let home = TempDir::with_prefix("portolan-helm-").context("make helm's home")?;
        Ok(Self { program, home })
    }

    /// Runs helm in `deploy/`, without a cluster, with the words of a text, and values
    /// (`path=value`) for the chart that the text names. A value in braces or brackets is JSON.
    fn run(&self, words: &str, values: &[&str]) -> Result<String> {
        let mut command = command::of(&self.program, "--namespace kube-system");
        let homes = ["HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"];
        command
            .args(words.split(' '))
            .current_dir(folder(""))
            .envs(homes.map(|name| (name, self.home.path())))
            .env("KUBECONFIG", "/dev/null");
        for value in values {
            let (_, inner) = value.split_once('=').unwrap_or_default();
            // `[::]:1` is an address.
            let is_json = inner.starts_with('{') || inner.starts_with('[') && inner.ends_with(']');
            command.args([if is_json { "--set-json" } else { "--set" }, value]);
        }
        let values = values.join(" ");
        command::output(&mut command, &format!("helm {words} {values}"))
    }

    /// Returns the YAML of the objects that the chart renders with these values, without its hooks.
    pub(super) fn template(&self, values: &[&str]) -> Result<String> {
        self.run("template portolan --no-hooks ./chart", values)
    }

    pub(super) fn objects(&self, kubectl: &Kubectl, values: &[&str]) -> Result<Objects> {
        kubectl.parse(&self.template(values)?)
    }
}

/// Tests that `kubectl apply -k deploy`, and the cluster's overlay, give the objects of the chart.
pub(super) fn same(helm: &Helm, kubectl: &Kubectl) -> Result<()> {
    let cluster = [
        "kubeProxyConfigMap=kube-proxy",
        "cgroupRoot=/run/portolan-cluster/cgroup",
        "gatewayAPI=true",
        "gatewayServices=true",
        "controller.enabled=true",
    ];
    for (folder, values) in [
        (folder(""), &cluster[..1]),
        (cargo::root().join("xtask/cluster/overlay"), &cluster[..]),
    ] {
        helm.run("lint --strict --quiet ./chart", values)?;
        let (one, other) = (kubectl.kustomize(&folder)?, helm.objects(kubectl, values)?);
        let keys = (one.keys(), other.keys());
        ensure!(one.keys().eq(other.keys()), "{keys:?}");
        for (key, object) in &one {
            let chart = &other[key];
            ensure!(object == chart, "{key:?}: {object}, chart: {chart}");
        }
    }
    Ok(())
}

/// Tests that ports follow the addresses in the settings, and probes a value of their own.
pub(super) fn ports(helm: &Helm) -> Result<()> {
    const ANYWHERE: &str = "settings.healthzBindAddress=0.0.0.0 settings.metricsBindAddress=::1";
    const OTHERS: &str = "settings.healthzBindAddress=127.0.0.1:20256 \
        settings.metricsBindAddress=[::]:20249 probeAddress=[::1]:20247";
    for (values, ports, host) in [
        ("", [10256, 10249, 10247], "127.0.0.1"),
        (ANYWHERE, [10256, 10249, 10247], "127.0.0.1"),
        (OTHERS, [20256, 20249, 20247], "::1"),
    ] {
        let values: Vec<_> = values.split_whitespace().collect();
        let text = helm.template(&[&[ADDRESS], &values[..]].concat())?;
        for port in ports {
            let line = format!("containerPort: {port}, hostPort: {port}");
            ensure!(text.contains(&line), "no {line}: {text}");
        }
        let probe = format!("httpGet: {{host: \"{host}\", port: probes");
        let probes = text.matches(&probe);
        ensure!(probes.count() == 3, "probes of {host}: {text}");
    }
    Ok(())
}

/// Tests that the node affinity of the values is kept, and that ours is added to each of its terms.
pub(super) fn affinity(helm: &Helm, kubectl: &Kubectl) -> Result<()> {
    const RULE: &str = "requiredDuringSchedulingIgnoredDuringExecution";
    let fargate = json!({"key": "compute", "operator": "NotIn", "values": ["fargate"]});
    let field = json!([{"key": "metadata.name", "operator": "In", "values": ["a"]}]);
    let terms = json!([{"matchExpressions": [fargate]}, {"matchFields": field}]);
    let given = json!({"nodeAffinity": {RULE: {"nodeSelectorTerms": terms}}});
    for (mode, operator, value) in [
        ("nodeByNode=false", "NotIn", "kube-proxy"),
        ("nodeByNode=true", "In", "portolan"),
        ("serviceProxyName=canary", "NotIn", "kube-proxy"),
    ] {
        let objects = helm.objects(kubectl, &[ADDRESS, mode, &format!("affinity={given}")])?;
        let node = &daemon_set(&objects)?["spec"]["template"]["spec"]["affinity"]["nodeAffinity"];
        let ours = json!({"key": "portolan.dev/proxy", "operator": operator, "values": [value]});
        let wanted = json!([
            {"matchExpressions": [fargate, ours]},
            {"matchExpressions": [ours], "matchFields": field},
        ]);
        ensure!(node[RULE]["nodeSelectorTerms"] == wanted, "{mode}: {node}");
    }
    Ok(())
}

/// Tests what an upgrade of a release changes, that a release which drains stands beside another
/// one, and that nothing of a release stays when helm uninstalls it.
pub(super) fn releases(helm: &Helm, kubectl: &Kubectl) -> Result<()> {
    let of = |values: &[&str]| helm.template(&[&[ADDRESS], values].concat());
    let first = of(&[])?;
    let second = of(&["image.tag=0.2.0", "settings.clusterCIDR=10.9.0.0/16"])?;
    ensure!(second.contains(":0.2.0"), "another image: {second}");
    // Other settings replace the pods. The ConfigMap keeps its name: pods of before still use it.
    let checksum = |text: &str| {
        let mut lines = text.lines();
        let line = lines.find(|line| line.contains("checksum/config: "));
        line.map(str::to_owned)
    };
    let sums = (checksum(&first), checksum(&second));
    ensure!(sums.0.is_some() && sums.0 != sums.1, "checksums: {sums:?}");
    for part in ["helm.sh/hook", "helm.sh/resource-policy"] {
        ensure!(!first.contains(part), "{part}: {first}");
    }
    let (first, second) = (kubectl.parse(&first)?, kubectl.parse(&second)?);
    ensure!(first.keys().eq(second.keys()), "{:?}", second.keys());
    let serving = daemon_set(&first)?;
    let volume = &serving["spec"]["template"]["spec"]["volumes"][2];
    let read = text(&volume["configMap"]["name"]);
    let has_map = first.contains_key(&("ConfigMap".to_owned(), read));
    ensure!(has_map, "there is no ConfigMap for {volume}");
    // As an upgrade of the first release, a drain keeps the selection of pods. Beside it, another
    // release shares no object with it.
    for (mode, is_beside) in [("mode=drain", false), ("mode=drain-labelled", true)] {
        let objects = helm.objects(kubectl, &[ADDRESS, mode])?;
        let draining = daemon_set(&objects)?;
        let arguments = &draining["spec"]["template"]["spec"]["containers"][0]["args"];
        ensure!(arguments[0] == "cleanup", "{mode}: {arguments}");
        let is_same = draining["spec"]["selector"] == serving["spec"]["selector"];
        let mut keys = objects.keys();
        let fits = keys.all(|key| first.contains_key(key) != is_beside);
        ensure!(fits && is_same != is_beside, "{mode}: {:?}", objects.keys());
    }
    // What serves is not uninstalled, because the programs would stay.
    for (mode, refuses) in [("run", true), ("drain", false), ("drain-labelled", false)] {
        let words = "template portolan --skip-tests ./chart";
        let with_hooks = helm.run(words, &[ADDRESS, &format!("mode={mode}")])?;
        let has = with_hooks.contains("helm.sh/hook: pre-delete");
        ensure!(has == refuses, "{mode}: {with_hooks}");
    }
    Ok(())
}

fn daemon_set(objects: &Objects) -> Result<&Value> {
    let found = objects.iter().find(|((kind, _), _)| kind == "DaemonSet");
    Ok(found.context("no DaemonSet")?.1)
}

/// Tests that helm refuses values, by name: by a rule of the templates, and by the schema.
pub(super) fn refused(helm: &Helm) -> Result<()> {
    for row in include_str!("../../deploy/refused.txt").lines() {
        let (values, named) = row.split_once(" | ").unwrap_or_default();
        let values = values.replace("ADDRESS", ADDRESS);
        let words: Vec<_> = values.split_whitespace().collect();
        let error = helm.template(&words).err();
        let error = error.with_context(|| format!("{values} is taken"))?;
        let text = format!("{error:#}");
        // The error begins with the command itself, which also contains the value.
        let answer = text.split_once("Error:").map_or("", |(_, answer)| answer);
        let is_named = answer.contains(named);
        ensure!(is_named, "{values}: {named} is not in {text}");
    }
    Ok(())
}

/// Tests that the chart and the images in the kustomize folders have the version of the packages.
pub(super) fn versions() -> Result<()> {
    let version = env!("CARGO_PKG_VERSION");
    for (file, line) in [
        ("chart/Chart.yaml", "\nversion: VERSION\n"),
        ("chart/Chart.yaml", "\nappVersion: VERSION\n"),
        ("overlays/kubeadm/kustomization.yaml", " newTag: VERSION}\n"),
        ("controller/kustomization.yaml", " newTag: VERSION}\n"),
        ("emergency/kustomization.yaml", " newTag: VERSION}\n"),
        ("kube-proxy/clean/kustomization.yaml", " newTag: VERSION}\n"),
    ] {
        let line = line.replace("VERSION", version);
        let is_there = fs::read_to_string(folder(file))?.contains(&line);
        ensure!(is_there, "deploy/{file} does not say {}", line.trim());
    }
    Ok(())
}
