// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The tested steps in their order, and the commands of the pages that are not tested, with the
//! reason.

/// A step of the rehearsal.
#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    /// The commands of a section, word by word, while clients are busy: page, heading, and a text
    /// that each command contains.
    Busy(&'static str, &'static str, &'static str),
    /// Like `Busy`, without clients: draining takes as long as clients have connections.
    Quiet(&'static str, &'static str, &'static str),
    /// A command within a page's text, while clients are busy.
    Said(&'static str),
    /// A change that a page tells the reader to make in a file of `deploy`: file, old text, new
    /// text.
    Write(&'static str, &'static str, &'static str),
    /// Gives the image another tag on all nodes.
    Tag(&'static str),
    /// Installs kube-proxy in this mode, as kubeadm does.
    KubeProxy(&'static str),
    /// A command of a section that does not end by itself: it keeps running on the node.
    Beside(&'static str, &'static str, &'static str),
    /// Ends the command of `Beside`, which must leave nothing behind.
    End,
    /// From here on NODE means this node.
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

/// The rehearsal: each step begins where the one before it ends.
pub(super) const STEPS: &[Step] = &[
    // The twelve tasks, from kube-proxy nftables and back.
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
    // From iptables, as the page about migration describes.
    KubeProxy("iptables"),
    Busy(MIGRATE, "All nodes at once (kubeadm)", ""),
    Quiet(MIGRATE, "Back to kube-proxy", ""),
    KubeProxy("nftables"),
    Busy(INSTALL, "kubeadm", ""),
    // What can be observed before the switch: on one node, and by pods on all nodes.
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
    // By helm, to portolan and back.
    Busy(INSTALL, "kubeadm", "patch"),
    Busy(INSTALL, "Helm", "kubeProxyConfigMap"),
    Said(STATUS),
    Tag("0.1.0-other"),
    Busy(UPGRADE, "Helm", "upgrade"),
    Said(STATUS),
    Busy(UPGRADE, "Helm", "rollback"),
    Said(STATUS),
    Busy(TASKS, "Go back to kube-proxy", "kube-proxy"),
    Quiet(MIGRATE, "Helm", ""),
    // By the overlay and by the values for any other cluster.
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
    // Node by node, to portolan and back.
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

/// Commands that are not tested: page, section and beginning (empty: any), and the reason.
pub(super) const LEFT_OUT: &[(&str, &str, &str, &str)] = &[
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
