// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests with a real API server: which objects it has after helm installs, upgrades, rolls back and
//! uninstalls; and that the node label portolan.dev/proxy selects whether portolan or kube-proxy
//! runs on a node, with the real DaemonSet controller and nodes without a kubelet.

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use super::{
    folder,
    objects::{ADDRESS, Helm, Kubectl, Objects},
    server::Server,
};

/// The kinds of objects that the chart has, and of helm's own records (secrets).
const KINDS: &str = "serviceaccount daemonset configmap clusterrole clusterrolebinding secret";

pub(super) fn lifecycle(helm: &Helm, server: &Server) -> Result<()> {
    let kubeconfig = server.kubeconfig();
    let bare = everything(server)?;
    let on_server =
        |words: &str, values: &[&str]| helm.run(words, values, Some(&kubeconfig)).map(drop);
    let place = |action, values: &[&str]| {
        on_server(
            &format!("{action} portolan ./chart"),
            &[&[ADDRESS], values].concat(),
        )
    };

    place("install", &[])?;
    let first = served(server)?;
    ensure!(first.contains(":0.1.0\""), "installed: {first}");

    let changes = ["image.tag=0.2.0", "settings.clusterCIDR=10.9.0.0/16"];
    place("upgrade", &changes)?;
    let second = served(server)?;
    ensure!(second.contains(":0.2.0\""), "upgraded: {second}");
    // Other settings replace the pods. The ConfigMap keeps its name: pods of before still use it.
    let parts = first.split(' ').zip(second.split(' '));
    let same: Vec<_> = parts.map(|(one, other)| one == other).collect();
    ensure!(same == [false, false, true], "upgraded: {first}, {second}");

    // helm refuses a wrong value and changes nothing.
    let refused = place("upgrade", &["mode=walk"]).is_err();
    ensure!(refused, "a wrong value is taken");
    let serves = |expected: &str, when| {
        let found = served(server)?;
        ensure!(found == expected, "{when}: {found}");
        Ok(())
    };
    serves(&second, "a refused upgrade has changed something")?;

    on_server("rollback portolan 1", &[])?;
    serves(&first, "rolled back")?;

    // A second helm release with another mode, next to the first, must not change it.
    on_server("install drain ./chart", &["mode=drain-labelled"])?;
    let sets = server.list("daemonset", &[])?;
    let names: Vec<_> = sets.iter().map(|set| &set["metadata"]["name"]).collect();
    ensure!(names == ["portolan", "portolan-drain"], "beside: {names:?}");
    serves(&first, "the second release changes the first")?;
    on_server("uninstall drain", &[])?;
    serves(&first, "the second release takes from the first")?;

    // Back to kube-proxy with only the first helm release: its pods now drain.
    on_server("upgrade portolan ./chart", &["mode=drain"])?;
    let draining = server.list("daemonset", &[])?;
    let arguments = &draining[0]["spec"]["template"]["spec"]["containers"][0]["args"];
    ensure!(arguments[0] == "cleanup", "draining: {arguments}");

    on_server("uninstall portolan", &[])?;
    let left = everything(server)?;
    ensure!(left == bare, "left behind: {left:?}, before: {bare:?}");
    Ok(())
}

/// Returns of what portolan's DaemonSet is: the image, the checksum of the settings, and the name
/// of the ConfigMap, the only one, which the pods read.
fn served(server: &Server) -> Result<String> {
    let sets = server.list("daemonset", &["--field-selector=metadata.name=portolan"])?;
    ensure!(sets.len() == 1, "{} DaemonSets of portolan's", sets.len());
    let template = &sets[0]["spec"]["template"];
    let pod = &template["spec"];
    let read = &pod["volumes"][2]["configMap"]["name"];
    let maps = server.list("configmap", &["--selector=app.kubernetes.io/name=portolan"])?;
    let names: Vec<_> = maps.iter().map(|map| &map["metadata"]["name"]).collect();
    ensure!(names == [read], "ConfigMaps {names:?}, and {read} is read");
    let checksum = &template["metadata"]["annotations"]["checksum/config"];
    Ok(format!(
        "{} {checksum} {read}",
        pod["containers"][0]["image"]
    ))
}

/// Returns the names of all objects of `KINDS` that belong to portolan or helm.
fn everything(server: &Server) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for kind in KINDS.split(' ') {
        let text = server.kubectl(&["get", kind, "-o", "name"])?;
        let foreign = |name: &&str| !name.contains("system:");
        names.extend(text.lines().filter(foreign).map(str::to_owned));
    }
    // The API server creates other objects by itself at any time.
    names.retain(|name| name.contains("portolan") || name.contains("helm"));
    Ok(names)
}

/// kube-proxy's DaemonSet as kubeadm creates it, reduced to the fields that select nodes.
const KUBE_PROXY: &str = include_str!("../../deploy/kube-proxy.yaml");

/// What is done, and after `=` which pods the nodes then have.
const STEPS: &str = include_str!("../../deploy/nodes.txt");

pub(super) fn nodes(
    mut server: Server,
    kubectl: &Kubectl,
    helm: &Helm,
    controllers: &Path,
) -> Result<()> {
    server.start_daemon_sets(controllers)?;
    let server = &server;
    for (number, step) in (1..).zip(STEPS.lines()) {
        let (verb, rest) = step.split_once(' ').unwrap_or_default();
        let words: Vec<_> = rest.split(' ').collect();
        let when = || format!("step {number}, {step}");
        match (verb, &words[..]) {
            ("#" | "", _) => Ok(()),
            ("=", _) => expect(server, &when(), rest),
            ("node", names) => names.iter().try_for_each(|name| add_node(server, name)),
            ("label", [node, proxy]) => {
                let label = format!("portolan.dev/proxy={proxy}");
                let words = ["label", "--overwrite", "node", node, &label];
                server.kubectl(&words).map(drop)
            }
            ("gate", _) => {
                let file = folder(&format!("kube-proxy/{rest}.yaml"));
                let file = file.display().to_string();
                let patch = ["patch", "daemonset", "kube-proxy", "--patch-file", &file];
                server.kubectl(&patch).map(drop)
            }
            ("apply", _) => server.apply(KUBE_PROXY),
            ("replace", _) => server.feed(&["replace", "-f", "-"], KUBE_PROXY).map(drop),
            ("chart", _) => apply(server, &helm.objects(kubectl, &[ADDRESS, rest])?),
            ("kustomize", _) => apply(server, &kubectl.kustomize(&folder(rest))?),
            _ => bail!("no such step"),
        }
        .with_context(when)?;
    }
    Ok(())
}

fn add_node(server: &Server, name: &str) -> Result<()> {
    let labels = json!({"kubernetes.io/os": "linux"});
    let metadata = json!({"name": name, "labels": labels});
    server.apply(&json!({"apiVersion": "v1", "kind": "Node", "metadata": metadata}).to_string())
}

fn apply(server: &Server, objects: &Objects) -> Result<()> {
    let mut objects = objects.values();
    objects.try_for_each(|object| server.apply(&object.to_string()))
}

/// Waits until the nodes have these pods (`NODE/DAEMONSET`, sorted) and no others. Binds new pods
/// as the scheduler would, because the controller finds a node's pods by the binding, and ends pods
/// as a kubelet would.
fn expect(server: &Server, when: &str, wanted: &str) -> Result<()> {
    server.wait(when, || {
        let mut found = Vec::new();
        let mut changed = false;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        for pod in server.list("pod", &[])? {
            let name = text(&pod["metadata"]["name"]);
            if pod["metadata"]["deletionTimestamp"].is_string() {
                changed = true;
                server.kubectl(&["delete", "pod", &name, "--force", "--ignore-not-found"])?;
            } else if pod["spec"]["nodeName"].is_null() {
                changed = true;
                bind(server, &name, &wanted_node(&pod))?;
            }
            let app = text(&pod["metadata"]["labels"]["app"]);
            found.push(format!("{}/{app}", wanted_node(&pod)));
        }
        found.sort_unstable();
        let found = found.join(" ");
        ensure!(!changed && found == wanted, "{found}");
        Ok(())
    })
}

/// Returns the name of the node for which the DaemonSet controller has created a pod.
fn wanted_node(pod: &Value) -> String {
    let affinity = &pod["spec"]["affinity"]["nodeAffinity"];
    let required = &affinity["requiredDuringSchedulingIgnoredDuringExecution"];
    let name = &required["nodeSelectorTerms"][0]["matchFields"][0]["values"][0];
    name.as_str().unwrap_or_default().to_owned()
}

fn bind(server: &Server, pod: &str, node: &str) -> Result<()> {
    let binding = json!({
        "apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    });
    let path = format!("/api/v1/namespaces/kube-system/pods/{pod}/binding");
    let arguments = ["create", "--raw", &path, "-f", "-"];
    server.feed(&arguments, &binding.to_string()).map(drop)
}
