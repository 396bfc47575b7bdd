// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The tests of `deploy/` that xtask runs itself, because they need helm, kubectl or an API server:
//! chart against overlays, installation, the kubectl plugin. Called by `test`. Needs no root.

mod chart_values;
mod equal;
mod helm;
mod kustomize;
mod lifecycle;
mod nodes;
mod packages;
mod plugin;
mod server;

use std::{path::PathBuf, time::Instant};

use anyhow::Result;

use self::{helm::Helm, kustomize::Kubectl, server::Server};
use crate::{
    cargo,
    release::sbom,
    setup::{
        self, CYCLONEDX, DENY,
        control_plane::{self, KUBERNETES},
        go::{self, Module, Program},
    },
};

const HELM: Module = Module {
    folder: "helm",
    versioned: "helm.sh/helm/v4",
};

const CONTROLLERS: Program = Program::new(
    "kube-controller-manager",
    "k8s.io/kubernetes/cmd/kube-controller-manager",
);

const HELM_PROGRAM: Program = Program::new("helm", "helm.sh/helm/v4/cmd/helm");

/// What a test needs that takes minutes to build, once per user of this machine.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Needs {
    Nothing,
    Helm,
    Controllers,
    Bills,
}

impl Needs {
    fn are_built(self) -> bool {
        match self {
            Self::Nothing => true,
            Self::Helm => go::are_built(&HELM, &[HELM_PROGRAM]),
            Self::Controllers => go::are_built(&KUBERNETES, &[CONTROLLERS]),
            Self::Bills => CYCLONEDX.is_built(),
        }
    }
}

/// Whether `check` builds missing tools.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tools {
    Built,
    /// Missing tools are not built; the tests that need them are reported as not run.
    AsTheyAre,
}

/// A test: its name, what it needs, and the function that fails if the test fails.
type Test<'a> = (&'a str, Needs, &'a dyn Fn() -> Result<()>);

/// Runs every test whose name contains a text of `filter` (empty: all), also after one has failed.
/// Calls `seen` with each test's name and result; None means that the test was not run.
pub(crate) fn check(
    filter: &[String],
    tools: Tools,
    mut seen: impl FnMut(&str, Option<&Result<()>>),
) -> Result<()> {
    let programs = control_plane::find()?;
    if tools == Tools::Built {
        setup::cargo_tool(&DENY)?;
    }
    let helm = || -> Result<Helm> { Helm::new(helm_folder()?.join(HELM_PROGRAM.name)) };
    let controllers = || -> Result<PathBuf> {
        let folder = go::programs(&KUBERNETES, &[CONTROLLERS], "2 to 5 minutes")?;
        Ok(folder.join(CONTROLLERS.name))
    };
    let kubectl = Kubectl::new(programs.join("kubectl"));
    let server = || Server::start(&programs);
    let tests: &[Test<'_>] = &[
        (
            "the_chart_gives_the_objects_of_each_overlay",
            Needs::Helm,
            &|| equal::check(&helm()?, &kubectl),
        ),
        (
            "the_charts_versions_are_the_projects",
            Needs::Nothing,
            &chart_values::versions,
        ),
        (
            "every_value_is_typed_and_documented_and_changes_something",
            Needs::Helm,
            &|| chart_values::check(&helm()?, &kubectl),
        ),
        ("wrong_values_are_refused_by_name", Needs::Helm, &|| {
            chart_values::refused(&helm()?)
        }),
        (
            "an_overlay_is_a_base_for_a_folder_elsewhere",
            Needs::Nothing,
            &|| kustomize::from_elsewhere(&kubectl),
        ),
        ("an_overlay_is_a_base_by_git", Needs::Nothing, &|| {
            kustomize::by_git(&kubectl)
        }),
        (
            "a_bill_of_materials_names_what_is_built_in",
            Needs::Bills,
            &sbom::check,
        ),
        (
            "dpkg_unpacks_the_package",
            Needs::Nothing,
            &packages::debian,
        ),
        ("helm_reads_the_packed_chart", Needs::Helm, &|| {
            packages::chart(&helm()?)
        }),
        (
            "a_release_is_installed_upgraded_rolled_back_and_removed",
            Needs::Helm,
            &|| lifecycle::check(&helm()?, &server()?),
        ),
        (
            "the_plugin_asks_the_nodes_of_both_ends",
            Needs::Nothing,
            &|| plugin::check(&server()?, &programs.join("kubectl")),
        ),
        (
            "a_nodes_label_moves_it_to_portolan_and_back_and_no_node_is_without_a_proxy",
            Needs::Controllers,
            &|| nodes::check(server()?, &kubectl, &controllers()?),
        ),
    ];
    for (name, needs, test) in tests {
        if !filter.is_empty() && !filter.iter().any(|part| name.contains(part.as_str())) {
            continue;
        }
        if tools == Tools::AsTheyAre && !needs.are_built() {
            println!("test {name} ... not run: `cargo xtask test deploy` builds what it needs");
            seen(name, None);
            continue;
        }
        let start = Instant::now();
        let result = test();
        let state = if result.is_ok() { "ok" } else { "FAILED" };
        println!(
            "test {name} ... {state} ({:.1} s)",
            start.elapsed().as_secs_f64()
        );
        if let Err(error) = &result {
            println!("{error:#}");
        }
        seen(name, Some(&result));
    }
    Ok(())
}

/// Returns the folder with the program helm, which is built if it is missing.
pub(crate) fn helm_folder() -> Result<PathBuf> {
    go::programs(&HELM, &[HELM_PROGRAM], "3 to 8 minutes")
}

/// Returns the path of `name` in `deploy/`.
fn folder(name: &str) -> PathBuf {
    cargo::root().join("deploy").join(name)
}
