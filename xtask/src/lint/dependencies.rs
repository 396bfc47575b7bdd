// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Checks that packages do not depend on packages of other layers (see ARCHITECTURE.md), according
//! to `cargo metadata`. Dependencies of tests, benchmarks and build scripts are allowed.

use crate::cargo::Workspace;

/// A line for each package: the package, the dependencies that it must not have (`*`: any), and the
/// reason.
const RULES: &str = include_str!("dependencies.txt");

/// Returns a line for each dependency that a package must not have, and for each rule about a
/// package that does not exist.
pub(super) fn check(workspace: &Workspace) -> Vec<String> {
    let known = workspace.folders();
    let mut found = Vec::new();
    for rule in RULES.lines() {
        let package = rule.split(' ').next().unwrap_or_default();
        if !known.iter().any(|(name, _)| name == package) {
            found.push(format!(
                "there is no package {package}, but a rule about it"
            ));
        }
        found.extend(of_package(rule, &workspace.dependencies(package)));
    }
    found
}

fn of_package(rule: &str, dependencies: &[String]) -> Vec<String> {
    let mut parts = rule.split(" | ");
    let [package, forbidden, because] = [(); 3].map(|()| parts.next().unwrap_or_default());
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
        let names = ["serde", "kube"].map(str::to_owned);
        let found = of_package("control | aya kube | it decides", &names);
        assert_eq!(found, ["control may not depend on kube: it decides"]);
        let any = of_package("proxy-common | * | both compile it", &names);
        assert_eq!(any.len(), 2);
    }
}
