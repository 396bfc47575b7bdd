// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The direction of dependencies as data; ARCHITECTURE.md has the picture. Checked by `direction`.

use super::direction::Rule;
use crate::cargo::Workspace;

const COMMON: &str = "proxy-common";

/// The order is: model <- tracker, planner; plan <- planner, datapath; all of these <- syncer <- agent <- cli.
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
        forbidden: &[
            "aya",
            "tokio",
            "kube",
            "k8s_openapi",
            "crate::model",
            "crate::tracker",
            "crate::planner",
            "crate::watch",
            "crate::datapath",
            "crate::syncer",
            "crate::interfaces",
            "crate::server",
            "crate::agent",
            "crate::cli",
        ],
        because: "it is the contract between planner and datapath, and plain data",
    },
    Rule {
        within: "proxy-user/src/model",
        forbidden: &[
            "aya",
            "tokio",
            "kube",
            "crate::tracker",
            "crate::planner",
            "crate::plan",
            "crate::watch",
            "crate::datapath",
            "crate::syncer",
            "crate::interfaces",
            "crate::server",
            "crate::agent",
            "crate::cli",
        ],
        because: "it is our view of the objects, whatever becomes of them",
    },
    Rule {
        within: "proxy-user/src/planner",
        forbidden: &[
            "aya",
            "tokio",
            "kube",
            "crate::watch",
            "crate::datapath",
            "crate::syncer",
            "crate::interfaces",
            "crate::server",
            "crate::agent",
            "crate::cli",
        ],
        because: "it is a pure function from cluster state to plan",
    },
    Rule {
        within: "proxy-user/src/tracker",
        forbidden: &[
            "aya",
            "kube",
            "crate::datapath",
            "crate::syncer",
            "crate::interfaces",
            "crate::server",
            "crate::agent",
            "crate::cli",
        ],
        because: "it folds changes into cluster state and knows nobody above it",
    },
    Rule {
        within: "proxy-user/src/watch",
        forbidden: &[
            "aya",
            "crate::planner",
            "crate::plan",
            "crate::datapath",
            "crate::syncer",
            "crate::agent",
            "crate::cli",
        ],
        because: "a source of changes knows nothing of what is made of them",
    },
    Rule {
        within: "proxy-user/src/datapath",
        forbidden: &[
            "kube",
            "k8s_openapi",
            "crate::model",
            "crate::tracker",
            "crate::planner",
            "crate::watch",
            "crate::syncer",
            "crate::server",
            "crate::agent",
            "crate::cli",
        ],
        because: "it knows maps and programs, and no Kubernetes type",
    },
    Rule {
        within: "proxy-user/src/syncer",
        forbidden: &["aya", "kube", "k8s_openapi", "crate::agent", "crate::cli"],
        because: "it only runs rounds of plan and apply",
    },
    Rule {
        within: "proxy-user/src/server",
        forbidden: &["aya", "kube", "crate::syncer", "crate::agent", "crate::cli"],
        because: "the agent uses it",
    },
    Rule {
        within: "proxy-user/src/interfaces",
        forbidden: &[
            "aya",
            "kube",
            "k8s_openapi",
            "crate::syncer",
            "crate::agent",
            "crate::cli",
        ],
        because: "it tells what links and addresses there are, and the agent uses it",
    },
    Rule {
        within: "proxy-user/src/agent",
        forbidden: &["crate::cli"],
        because: "cli starts it",
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

/// proxy-common depends on nothing, but for aya's trait behind a feature.
pub(super) fn check_dependencies(workspace: &Workspace) -> Vec<String> {
    unwanted(&workspace.dependencies(COMMON))
}

fn unwanted(dependencies: &[(String, bool)]) -> Vec<String> {
    dependencies
        .iter()
        .filter(|(name, optional)| !(name == "aya" && *optional))
        .map(|(name, _)| {
            format!("{COMMON}/Cargo.toml: depends on {name}; only an optional aya is allowed there")
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_common_crate_may_have_an_optional_aya_and_nothing_else() {
        assert_eq!(unwanted(&[("aya".to_owned(), true)]), Vec::<String>::new());
        assert_eq!(
            unwanted(&[("aya".to_owned(), false), ("libc".to_owned(), true)]).len(),
            2
        );
    }

    #[test]
    fn every_rule_is_about_the_sources_of_one_package() {
        for rule in RULES {
            assert!(rule.within.contains("/src"), "{}", rule.within);
            assert!(!rule.within.ends_with('/'), "{}", rule.within);
        }
    }
}
