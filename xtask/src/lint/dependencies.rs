// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Checks that packages do not depend on packages of other layers (see ARCHITECTURE.md), according
//! to `cargo metadata`. Dependencies of tests, benchmarks and build scripts are allowed. Called by
//! `lint`.

use crate::cargo::Workspace;

/// A package, the dependencies that it must not have (`*`: any), and the reason.
type Rule = (&'static str, &'static [&'static str], &'static str);

const RULES: &[Rule] = &[
    (
        "proxy-common",
        &["*"],
        "both the kernel programs and the agent compile it",
    ),
    (
        "portolan-control",
        &["portolan-linux", "aya", "kube", "tokio", "nix", "libc"],
        "it decides over plain values",
    ),
    (
        "portolan-linux",
        &["portolan-control", "kube", "k8s-openapi"],
        "it knows no service",
    ),
    (
        "portolan-source",
        &["portolan-linux", "portolan-datapath", "aya"],
        "it knows no use of the objects",
    ),
    (
        "portolan-datapath",
        &["portolan-source", "kube", "k8s-openapi"],
        "it knows plans, and no Kubernetes type",
    ),
    (
        "portolan-config",
        &["portolan-source", "portolan-agent", "kube", "tokio"],
        "it reads settings and does not use them",
    ),
    (
        "portolan-agent",
        &["portolan-cli", "kube", "clap"],
        "its loop is no command",
    ),
    (
        "portolan-cli",
        &["kube", "lab"],
        "only source speaks to an API server",
    ),
    (
        "proxy-user",
        &["lab", "kube"],
        "it is shipped without the lab",
    ),
    (
        "lab",
        &[
            "proxy-user",
            "portolan-agent",
            "portolan-cli",
            "portolan-config",
            "portolan-control",
            "portolan-datapath",
            "portolan-linux",
            "portolan-source",
            "aya",
        ],
        "it knows the agent as an operator does: the program, its settings, the pinned maps",
    ),
    (
        "xtask",
        &["proxy-common", "proxy-user", "lab", "aya", "kube", "tokio"],
        "it builds where the others do not",
    ),
];

/// Returns a line for each dependency that a package must not have.
pub(super) fn check(workspace: &Workspace) -> Vec<String> {
    let each = RULES.iter().flat_map(|rule| {
        let dependencies = workspace.dependencies(rule.0);
        of_package(rule, &dependencies)
    });
    each.collect()
}

fn of_package((package, forbidden, because): &Rule, dependencies: &[String]) -> Vec<String> {
    dependencies
        .iter()
        .filter(|name| forbidden.iter().any(|not| *not == "*" || not == name))
        .map(|name| format!("{package} may not depend on {name}: {because}"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forbidden_dependency_is_named_with_the_reason() {
        let rule: Rule = ("control", &["aya", "kube"], "it decides");
        let names = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(of_package(&rule, &names(&["serde"])), [""; 0]);
        assert_eq!(
            of_package(&rule, &names(&["serde", "kube"])),
            ["control may not depend on kube: it decides"]
        );
        let all: Rule = ("proxy-common", &["*"], "both compile it");
        assert_eq!(of_package(&all, &names(&["aya", "libc"])).len(), 2);
    }

    #[test]
    fn every_package_with_a_rule_is_there() {
        let workspace = Workspace::read().expect("the workspace");
        for (package, ..) in RULES {
            let mut packages = workspace.folders().into_iter();
            assert!(packages.any(|(name, _)| name == *package), "{package}");
        }
    }
}
