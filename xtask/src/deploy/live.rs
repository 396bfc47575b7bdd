// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests with a real API server that the node label portolan.dev/proxy selects whether portolan or
//! kube-proxy runs on a node, with the real DaemonSet controller and nodes without a kubelet.

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use super::{
    folder,
    objects::{ADDRESS, Helm, Kubectl, Objects},
    server::Server,
};

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
        for pod in server.list("pod")? {
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
