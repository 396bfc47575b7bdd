// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The placeholders in the pages' commands with their values in this cluster, and the exit statuses
//! that a command may have. Only computes; `run` queries the cluster.

/// What a placeholder is replaced by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Meaning {
    /// This fixed text.
    Is(&'static str),
    /// The name of the portolan pod on the current node.
    PodOnNode,
    /// The name of the current node; its address if the command is curl.
    Node,
    /// The IP address of the API server, after "//".
    Server,
    /// The option --kubeconfig with the path of the cluster's file.
    Kubeconfig,
    /// The IP address of the pod in which a client runs.
    Client,
    /// The cluster IP of the service that the clients use.
    Service,
}

use Meaning::{Client, Is, Kubeconfig, Node, PodOnNode, Server, Service};

/// Placeholders with their values, in this order: no value contains a later placeholder.
const MEANINGS: [(&str, Meaning); 11] = [
    ("NAMESPACE/NAME", Is("default/load-server")),
    ("shop/client", Is("default/load-client")),
    ("shop/cart", Is("default/load-server")),
    ("10.244.1.7", Client),
    ("10.96.12.1", Service),
    ("tag=VERSION", Is("tag=0.1.0-other")),
    ("clusterCIDR=RANGE", Is("clusterCIDR=10.244.0.0/16")),
    ("--kubeconfig FILE", Kubeconfig),
    ("//ADDRESS", Server),
    ("POD", PodOnNode),
    ("NODE", Node),
];

/// Returns the line with its placeholders replaced; `ask` returns values other than `Is`.
pub(super) fn fill<E>(
    line: &str,
    mut ask: impl FnMut(Meaning) -> Result<String, E>,
) -> Result<String, E> {
    let mut line = line.to_owned();
    for (name, meaning) in MEANINGS {
        if line.contains(name) {
            let stands_for = match meaning {
                Is(text) => text.to_owned(),
                other => ask(other)?,
            };
            line = line.replace(name, &stands_for);
        }
    }
    Ok(line)
}

/// Returns true if the command `line` may end with this exit status; None means by a signal.
pub(super) fn is_as_it_should(line: &str, status: Option<i32>) -> bool {
    // Status 1: grep has found nothing, or another command has found a difference.
    let may_differ = line.contains("| grep")
        || line
            .split_whitespace()
            .any(|word| ["check", "explain"].contains(&word))
        || line.ends_with("shadow report");
    match status {
        Some(0) => true,
        Some(1) => may_differ,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(line: &str) -> String {
        fill(line, |meaning| Ok::<_, ()>(format!("<{meaning:?}>"))).expect("nothing fails")
    }

    #[test]
    fn placeholders_in_the_pages_are_replaced_by_the_clusters_names() {
        for (line, expected) in [
            ("kubectl get nodes", "kubectl get nodes"),
            (
                "exec POD -- x NAMESPACE/NAME",
                "exec <PodOnNode> -- x default/load-server",
            ),
            ("curl NODE:1", "curl <Node>:1"),
            (
                "helm --set apiServer=https://ADDRESS:6443",
                "helm --set apiServer=https:<Server>:6443",
            ),
            ("check --kubeconfig FILE", "check <Kubeconfig>"),
            (
                "explain --from pod/shop/client --to 10.96.12.1:80",
                "explain --from pod/default/load-client --to <Service>:80",
            ),
        ] {
            assert_eq!(filled(line), expected);
        }
    }

    #[test]
    fn only_commands_that_compare_or_search_may_end_with_1() {
        for line in [
            "kubectl logs POD | grep WARN",
            "kubectl portolan --sections check",
            "portolan check --migration",
            "kubectl portolan shadow report",
            "kubectl portolan explain --from A",
        ] {
            assert!(is_as_it_should(line, Some(1)), "{line}");
            assert!(!is_as_it_should(line, Some(2)), "{line}");
        }
        for line in [
            "kubectl apply -k deploy",
            "kubectl portolan checks",
            "helm install",
        ] {
            assert!(is_as_it_should(line, Some(0)), "{line}");
            assert!(!is_as_it_should(line, Some(1)), "{line}");
        }
        assert!(!is_as_it_should("portolan check", None));
    }
}
