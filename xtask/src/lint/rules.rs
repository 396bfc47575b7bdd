// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The direction of dependencies as data; ARCHITECTURE.md has the picture. Checked by `layers` and `direction`.

use super::{direction::Rule, layers::Layers};
use crate::cargo::{AGENT_PACKAGE, Workspace};

const COMMON: &str = "proxy-common";
/// Simulated nodes, servers and clients for tests and benchmarks.
const LAB: &str = "lab";

/// The modules of each folder, the lowest layer first.
pub(super) const LAYERS: &[Layers] = &[
    Layers {
        within: "proxy-user/src",
        order: &[
            "causes glob object telemetry",
            "interfaces model plan",
            "warnings",
            "datapath planner watch",
            "metrics runbooks tracker",
            "server",
            "config syncer",
            "agent",
            "cli",
        ],
        open: &["testing"],
    },
    Layers {
        within: "proxy-user/src/datapath",
        order: &[
            "options", "sys", "maps", "programs", "node", "store", "sweep", "import", "read",
            "trace",
        ],
        open: &["error"],
    },
    Layers {
        within: "proxy-ebpf/src",
        order: &[
            "globals helpers packet",
            "maps",
            "count service",
            "family",
            "socket",
            "tc xdp",
        ],
        open: &[],
    },
];

/// What the layers leave open: crates, and modules of a lower layer that a module has no business with.
pub(super) const RULES: &[Rule] = &[
    Rule {
        within: "proxy-common/src",
        forbidden: &[
            "aya_ebpf",
            "tokio",
            "kube",
            "k8s_openapi",
            "serde",
            "libc",
            "nix",
        ],
        because: "both sides compile it, so it depends on nothing",
    },
    Rule {
        within: "proxy-user/src/plan",
        forbidden: &["aya", "tokio", "kube", "k8s_openapi"],
        because: "it is the contract between planner and datapath, and plain data",
    },
    Rule {
        within: "proxy-user/src/model",
        forbidden: &["aya", "tokio", "kube"],
        because: "it is our view of the objects, independent of its use",
    },
    Rule {
        within: "proxy-user/src/planner",
        forbidden: &["aya", "tokio", "kube", "crate::interfaces"],
        because: "it is a pure function from cluster state to plan",
    },
    Rule {
        within: "proxy-user/src/tracker",
        forbidden: &["aya", "kube", "crate::datapath", "crate::interfaces"],
        because: "it only folds changes into cluster state",
    },
    Rule {
        within: "proxy-user/src/watch",
        forbidden: &["aya", "crate::plan"],
        because: "it produces changes and does not know their use",
    },
    Rule {
        within: "proxy-user/src/datapath",
        forbidden: &["kube", "k8s_openapi", "crate::model"],
        because: "it knows maps and programs, and no Kubernetes type",
    },
    Rule {
        within: "proxy-user/src/syncer",
        forbidden: &["aya", "kube", "k8s_openapi"],
        because: "it only runs rounds of plan and apply",
    },
    Rule {
        within: "proxy-user/src/server",
        forbidden: &["aya", "kube"],
        because: "it only answers HTTP requests",
    },
    Rule {
        within: "proxy-user/src/interfaces",
        forbidden: &["aya", "kube", "k8s_openapi"],
        because: "it only lists links and addresses",
    },
    Rule {
        within: "lab/src",
        forbidden: &["portolan", "aya"],
        because: "it knows the agent as an operator does: the program, its settings, the pinned maps",
    },
    Rule {
        within: "xtask/src",
        forbidden: &["proxy_common", "portolan", "aya", "kube", "tokio"],
        because: "it must build where the others do not",
    },
];

/// Packages that may not depend on another one, apart from their tests and benchmarks, and why.
const FORBIDDEN_DEPENDENCIES: [(&str, &str, &str); 2] = [
    (
        AGENT_PACKAGE,
        LAB,
        "it is shipped without; move it to [dev-dependencies]",
    ),
    (LAB, AGENT_PACKAGE, "it sees the agent from outside only"),
];

/// One complaint per dependency that a package may not have, by Cargo's own account.
pub(super) fn check_dependencies(workspace: &Workspace) -> Vec<String> {
    let mut found = of_common(&workspace.dependencies(COMMON));
    for rule in &FORBIDDEN_DEPENDENCIES {
        found.extend(forbidden(rule, &workspace.dependencies(rule.0)));
    }
    found
}

/// proxy-common depends on nothing.
fn of_common(dependencies: &[String]) -> Vec<String> {
    dependencies
        .iter()
        .map(|name| {
            format!("{COMMON}/Cargo.toml: depends on {name}; both sides compile it, so remove it")
        })
        .collect()
}

fn forbidden(
    (package, dependency, because): &(&str, &str, &str),
    dependencies: &[String],
) -> Option<String> {
    dependencies
        .iter()
        .any(|name| name == dependency)
        .then(|| format!("{package}/Cargo.toml: may not depend on {dependency}: {because}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_common_crate_has_no_dependency() {
        assert_eq!(of_common(&[]), [""; 0]);
        assert_eq!(of_common(&["aya".to_owned(), "libc".to_owned()]).len(), 2);
    }

    #[test]
    fn the_agent_may_not_depend_on_the_lab() {
        let rule = &FORBIDDEN_DEPENDENCIES[0];
        assert_eq!(forbidden(rule, &["aya".to_owned()]), None);
        let found = forbidden(rule, &["lab".to_owned()]).expect("a complaint");
        let start = "proxy-user/Cargo.toml: may not depend on lab: ";
        assert!(found.starts_with(start), "{found}");
    }

    #[test]
    fn every_rule_is_about_the_sources_of_one_package() {
        for rule in RULES {
            assert!(rule.within.contains("/src"), "{}", rule.within);
            assert!(!rule.within.ends_with('/'), "{}", rule.within);
        }
    }

    #[test]
    fn no_module_is_in_two_layers() {
        for layers in LAYERS {
            let listed = layers.order.iter().chain(layers.open);
            let mut names: Vec<_> = listed.flat_map(|layer| layer.split(' ')).collect();
            let count = names.len();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), count, "{}", layers.within);
        }
    }
}
