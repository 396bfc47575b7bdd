// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Checks that packages do not depend on packages of other layers (see ARCHITECTURE.md), according
//! to `cargo metadata`. Dependencies of tests, benchmarks and build scripts are allowed. Called by
//! `lint`.

use crate::cargo::Workspace;

/// A line for each package: the package, the dependencies that it must not have (`*`: any), and the
/// reason.
const RULES: &str = "
proxy-common | * | both the kernel programs and the agent compile it
portolan-control | portolan-linux aya kube tokio nix libc | it decides over plain values
portolan-linux | portolan-control kube k8s-openapi | it knows no service
portolan-source | portolan-linux portolan-datapath aya | it knows no use of the objects
portolan-datapath | portolan-source kube k8s-openapi | it knows plans, and no Kubernetes type
portolan-config | portolan-source portolan-agent kube tokio | it reads settings and does not use them
portolan-agent | portolan-cli kube clap | its loop is no command
portolan-cli | kube lab | only source speaks to an API server
proxy-user | lab kube | it is shipped without the lab
lab | proxy-user portolan-agent portolan-cli portolan-config portolan-control portolan-datapath portolan-linux \
    portolan-source aya | it knows the agent as an operator does: the program, its settings, the pinned maps
xtask | proxy-common proxy-user lab aya kube tokio | it builds where the others do not
";

/// A line of `RULES`: package, forbidden dependencies and reason.
type Rule<'a> = [&'a str; 3];

fn rules() -> impl Iterator<Item = Rule<'static>> {
    RULES.trim().lines().map(|line| {
        let mut parts = line.split(" | ");
        [(); 3].map(|()| parts.next().unwrap_or_default())
    })
}

/// Returns a line for each dependency that a package must not have.
pub(super) fn check(workspace: &Workspace) -> Vec<String> {
    rules()
        .flat_map(|rule| of_package(rule, &workspace.dependencies(rule[0])))
        .collect()
}

fn of_package([package, forbidden, because]: Rule<'_>, dependencies: &[String]) -> Vec<String> {
    let is_forbidden = |name: &&String| forbidden.split(' ').any(|not| not == "*" || not == *name);
    let found = dependencies.iter().filter(is_forbidden);
    let line = |name| format!("{package} may not depend on {name}: {because}");
    found.map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forbidden_dependency_is_named_with_the_reason() {
        let rule = ["control", "aya kube", "it decides"];
        let names = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(of_package(rule, &names(&["serde"])), [""; 0]);
        assert_eq!(
            of_package(rule, &names(&["serde", "kube"])),
            ["control may not depend on kube: it decides"]
        );
        let all = ["proxy-common", "*", "both compile it"];
        assert_eq!(of_package(all, &names(&["aya", "libc"])).len(), 2);
    }

    #[test]
    fn every_package_with_a_dependency_rule_exists() {
        let workspace = Workspace::read().expect("the workspace");
        for [package, _, because] in rules() {
            let mut packages = workspace.folders().into_iter();
            assert!(packages.any(|(name, _)| name == package), "{package}");
            assert_ne!(because, "", "{package}");
        }
    }
}
