// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests that the node label portolan.dev/proxy selects whether portolan or kube-proxy runs on a
//! node, with the real DaemonSet controller and nodes without a kubelet.

use std::path::Path;

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::{
    folder,
    helm::{ADDRESS, Helm},
    objects::{Kubectl, Objects},
    server::Server,
};

/// kube-proxy's DaemonSet as kubeadm creates it, reduced to the fields that select nodes.
const KUBE_PROXY: &str = "
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: kube-proxy, namespace: kube-system}
spec:
  selector: {matchLabels: {app: kube-proxy}}
  template:
    metadata: {labels: {app: kube-proxy}}
    spec:
      hostNetwork: true
      containers: [{name: kube-proxy, image: kube-proxy}]
      nodeSelector: {kubernetes.io/os: linux}
      tolerations: [{operator: Exists}]
";

pub(super) fn check(
    mut server: Server,
    kubectl: &Kubectl,
    helm: &Helm,
    controllers: &Path,
) -> Result<()> {
    let chart = |value: &str| helm.objects(kubectl, &[ADDRESS, value]);
    let kustomize = |name: &str| kubectl.kustomize(&folder(name));
    server.start_daemon_sets(controllers)?;
    let server = &server;
    for name in ["a", "b", "c"] {
        add_node(server, name)?;
    }
    server.apply(KUBE_PROXY)?;
    let by_kube_proxy = "a/kube-proxy b/kube-proxy c/kube-proxy";
    expect(server, "before", by_kube_proxy)?;

    // A migration node by node: no label means kube-proxy.
    gate(server, "node-by-node")?;
    apply(server, &chart("nodeByNode=true")?)?;
    expect(server, "gated", by_kube_proxy)?;
    label(server, "a", "portolan")?;
    expect(server, "the first", "a/portolan b/kube-proxy c/kube-proxy")?;
    // The first node gets kube-proxy back, and then all nodes get portolan.
    label(server, "a", "kube-proxy")?;
    expect(server, "back", by_kube_proxy)?;
    for name in ["a", "b", "c"] {
        label(server, name, "portolan")?;
    }
    expect(server, "all", "a/portolan b/portolan c/portolan")?;
    add_node(server, "d")?;
    expect(
        server,
        "a new node",
        "a/portolan b/portolan c/portolan d/kube-proxy",
    )?;

    // From now on, nodes without a label run portolan.
    label(server, "d", "portolan")?;
    gate(server, "only-labelled")?;
    apply(server, &chart("nodeByNode=false")?)?;
    add_node(server, "e")?;
    let all = "a/portolan b/portolan c/portolan d/portolan e/portolan";
    expect(server, "for good", all)?;

    // One node gets kube-proxy back; portolan drains there while kube-proxy runs.
    label(server, "b", "kube-proxy")?;
    apply(server, &chart("mode=drain-labelled")?)?;
    let back = all.replace("b/portolan", "b/kube-proxy b/portolan-drain");
    expect(server, "one back", &back)?;
    // A node that got portolan without a label goes back in the same way.
    label(server, "e", "kube-proxy")?;
    let back = back.replace("e/portolan", "e/kube-proxy e/portolan-drain");
    expect(server, "another back", &back)?;

    // In an emergency, the same nodes are cleaned without a drain.
    apply(server, &kustomize("emergency")?)?;
    expect(server, "emergency", &back)?;

    // kube-proxy's rules are removed wherever kube-proxy does not run.
    apply(server, &kustomize("kube-proxy/clean")?)?;
    let cleaned = "a/portolan a/portolan-clean-kube-proxy b/kube-proxy b/portolan-drain c/portolan \
                   c/portolan-clean-kube-proxy d/portolan d/portolan-clean-kube-proxy e/kube-proxy \
                   e/portolan-drain";
    expect(server, "cleaned", cleaned)?;

    // An upgrade by kubeadm replaces kube-proxy's DaemonSet by one without the patched node
    // selection, so nodes with portolan run kube-proxy too.
    server.feed(&["replace", "-f", "-"], KUBE_PROXY)?;
    let both = "a/kube-proxy a/portolan a/portolan-clean-kube-proxy b/kube-proxy b/portolan-drain \
                c/kube-proxy c/portolan c/portolan-clean-kube-proxy d/kube-proxy d/portolan \
                d/portolan-clean-kube-proxy e/kube-proxy e/portolan-drain";
    expect(server, "kube-proxy comes back where it is not gated", both)
}

fn add_node(server: &Server, name: &str) -> Result<()> {
    let labels = json!({"kubernetes.io/os": "linux"});
    let metadata = json!({"name": name, "labels": labels});
    server.apply(&json!({"apiVersion": "v1", "kind": "Node", "metadata": metadata}).to_string())
}

fn label(server: &Server, node: &str, proxy: &str) -> Result<()> {
    let label = format!("portolan.dev/proxy={proxy}");
    let arguments = ["label", "--overwrite", "node", node, &label];
    server.kubectl(&arguments).map(drop)
}

fn gate(server: &Server, name: &str) -> Result<()> {
    let file = folder(&format!("kube-proxy/{name}.yaml"));
    let file = file.display().to_string();
    let patch = ["patch", "daemonset", "kube-proxy", "--patch-file", &file];
    server.kubectl(&patch).map(drop)
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
