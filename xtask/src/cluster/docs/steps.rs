// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The steps that `cargo xtask docs` runs, in their order, and the commands of the pages that it
//! does not run, each with the reason.

/// A step of `cargo xtask docs`.
#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    /// Runs commands of a section, word by word, while clients send requests: page, heading, and a
    /// text that each command contains.
    Busy(&'static str, &'static str, &'static str),
    /// Like `Busy`, without clients: portolan's drain lasts as long as clients have connections.
    Quiet(&'static str, &'static str, &'static str),
    /// Runs a command that is part of a page's prose, while clients send requests.
    Said(&'static str),
    /// Makes a change that a page asks for in a file below `deploy`: file, old text, new text.
    Write(&'static str, &'static str, &'static str),
    /// Gives the agent's image this additional tag on all nodes.
    Tag(&'static str),
    /// Replaces portolan by kube-proxy in this mode, as kubeadm installs it.
    KubeProxy(&'static str),
    /// Starts a command that does not end by itself on the current node: page, heading, part of it.
    Beside(&'static str, &'static str, &'static str),
    /// Ends the command of the last `Beside`; fails if it has left its pinned maps on the node.
    End,
    /// Makes the node of this name the current one, which replaces NODE in later commands.
    Node(&'static str),
}

use Step::{Beside, Busy, End, KubeProxy, Node, Quiet, Said, Tag, Write};

const INSTALL: &str = "docs/install.md";
const MIGRATE: &str = "docs/migrate.md";
const UPGRADE: &str = "docs/upgrade.md";
const TASKS: &str = "docs/tasks.md";
const KUBECTL: &str = "docs/kubectl.md";
const DIFFER: &str = "What would differ";
const SHADOW: &str = "A shadow beside kube-proxy";
const KUBEADM: &str = "overlays/kubeadm/kustomization.yaml";
const BARE: &str = "overlays/bare/kustomization.yaml";
const STATUS: &str = "kubectl -n kube-system rollout status daemonset/portolan";

/// All steps, in this order: each begins with the cluster as the one before has left it.
pub(super) const STEPS: &[Step] = &[
    // The tasks of docs/tasks.md, from kube-proxy in mode nftables to portolan and back.
    KubeProxy("nftables"),
    Node("node-a"),
    Busy(TASKS, "Migrate from kube-proxy", ""),
    Busy(INSTALL, "See that it works", ""),
    Busy(TASKS, "See the services", ""),
    Busy(TASKS, "Find out why a service does not answer", ""),
    Busy(KUBECTL, "Use", ""),
    Busy(KUBECTL, "Both ends of a connection", ""),
    Busy(TASKS, "Read metrics", ""),
    Busy(TASKS, "Change a setting", "kubectl -n"),
    Tag("0.1.0-other"),
    Write(KUBEADM, "newTag: 0.1.0", "newTag: 0.1.0-other"),
    Busy(TASKS, "Upgrade", ""),
    Busy(UPGRADE, "Upgrade", ""),
    Busy(TASKS, "Roll back", ""),
    Busy(UPGRADE, "Roll back", ""),
    Write(KUBEADM, "newTag: 0.1.0-other", "newTag: 0.1.0"),
    Node("node-c"),
    Busy(TASKS, "Drain a node", ""),
    Said("kubectl uncordon node-c"),
    Busy(TASKS, "Go back to kube-proxy", ""),
    Quiet(TASKS, "Remove", ""),
    // From kube-proxy in mode iptables, as docs/migrate.md describes.
    KubeProxy("iptables"),
    Busy(MIGRATE, "All nodes at once (kubeadm)", ""),
    Busy(MIGRATE, "Clean up after kube-proxy", "kubectl"),
    Node("node-b"),
    Quiet(MIGRATE, "One node", ""),
    Node("node-c"),
    Quiet(MIGRATE, "When portolan fails on a node", ""),
    Quiet(MIGRATE, "Back to kube-proxy", ""),
    KubeProxy("nftables"),
    Busy(INSTALL, "kubeadm", ""),
    // What a reader can observe before the migration: on one node, and by pods on all nodes.
    KubeProxy("nftables"),
    Busy(MIGRATE, DIFFER, "configmap"),
    Busy(MIGRATE, DIFFER, "portolan check"),
    Beside(MIGRATE, SHADOW, "portolan run"),
    Busy(MIGRATE, SHADOW, "portolan shadow report"),
    End,
    Busy(MIGRATE, "Before the first node", ""),
    Busy(MIGRATE, DIFFER, "kubectl portolan"),
    Busy(MIGRATE, SHADOW, "kubectl portolan"),
    Busy(MIGRATE, SHADOW, "kubectl delete"),
    // To portolan and back, by helm.
    Busy(INSTALL, "kubeadm", "patch"),
    Busy(INSTALL, "Helm", "kubeProxyConfigMap"),
    Said(STATUS),
    Busy(INSTALL, "Helm", "helm -n kube-system test"),
    Tag("0.1.0-other"),
    Busy(UPGRADE, "Helm", "upgrade"),
    Said(STATUS),
    Busy(UPGRADE, "Helm", "rollback"),
    Said(STATUS),
    Busy(TASKS, "Go back to kube-proxy", "kube-proxy"),
    Quiet(MIGRATE, "Helm", ""),
    // To portolan by the overlay `bare` and by the chart's values for any other cluster.
    KubeProxy("nftables"),
    Write(BARE, "https://192.0.2.1:6443", "https://192.168.77.10:6443"),
    Busy(INSTALL, "kubeadm", "patch"),
    Busy(INSTALL, "Any other cluster", ""),
    Write(
        "overlays/bare/config.conf",
        "portolan: {}",
        "portolan: {socketBalancing: host}",
    ),
    Busy(TASKS, "Change a setting", "overlays/bare"),
    Said(STATUS),
    Said("kubectl delete -k deploy/overlays/bare"),
    Busy(INSTALL, "Helm", "delete configmap"),
    Busy(INSTALL, "Helm", "apiServer"),
    Said(STATUS),
    // To portolan and back, node by node.
    KubeProxy("nftables"),
    Busy(MIGRATE, "Node by node", "node-by-node"),
    Write(
        KUBEADM,
        "resources: [../../base]",
        "resources: [../../base]\ncomponents: [../../components/node-by-node]",
    ),
    Said("kubectl apply -k deploy"),
    Node("node-a"),
    Busy(MIGRATE, "Node by node", "label node"),
    Said(STATUS),
    Node("node-b"),
    Busy(MIGRATE, "Node by node", "label node"),
    Said(STATUS),
    Node("node-c"),
    Busy(MIGRATE, "Node by node", "label node"),
    Said(STATUS),
    Busy(MIGRATE, "Clean up after kube-proxy", "kubectl"),
    Busy(MIGRATE, "Node by node", "only-labelled"),
    Write(KUBEADM, "\ncomponents: [../../components/node-by-node]", ""),
    Said("kubectl apply -k deploy"),
    Said(STATUS),
];

/// Commands that are not tested: page, section, beginning (empty: all), and the reason.
pub(super) type LeftOut = (&'static str, &'static str, &'static str, &'static str);

pub(super) const LEFT_OUT: &[LeftOut] = &[
    (
        INSTALL,
        "The image",
        "",
        "`cargo xtask cluster up` makes it, and loads it on every node",
    ),
    (INSTALL, "k3s", "", "no k3s is at hand"),
    (INSTALL, "kind", "", "no kind is at hand"),
    (KUBECTL, "Install", "kubectl krew", "no krew is at hand"),
    (
        MIGRATE,
        "Clean up after kube-proxy",
        "kube-proxy --cleanup",
        "it needs a kube-proxy on the node; the image does the same",
    ),
];
