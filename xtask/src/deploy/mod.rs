// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The tests of `deploy/` that need helm or the DaemonSet controller: the chart against the overlays, both against a real API
//! server. Called by `test`. Needs no root.

mod chart_values;
mod equal;
mod helm;
mod kustomize;
mod lifecycle;
mod nodes;
mod packages;
mod server;

use std::{path::PathBuf, time::Instant};

use anyhow::Result;

use self::{helm::Helm, kustomize::Kubectl, server::Server};
use crate::{
    cargo,
    release::sbom,
    setup::{
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

/// A test: its name and what it does.
type Test<'a> = (&'a str, &'a dyn Fn() -> Result<()>);

/// Runs every test, also after one has failed, and hands each result to `seen`.
pub(crate) fn check(filter: &[String], mut seen: impl FnMut(&str, &Result<()>)) -> Result<()> {
    let programs = control_plane::find()?;
    let helm = Helm::new(
        go::programs(
            &HELM,
            &[Program::new("helm", "helm.sh/helm/v4/cmd/helm")],
            "3 to 8 minutes",
        )?
        .join("helm"),
    )?;
    let controllers = || -> Result<PathBuf> {
        let folder = go::programs(&KUBERNETES, &[CONTROLLERS], "2 to 5 minutes")?;
        Ok(folder.join(CONTROLLERS.name))
    };
    let kubectl = Kubectl::new(programs.join("kubectl"));
    let server = || Server::start(&programs);
    let tests: &[Test<'_>] = &[
        ("the_chart_gives_the_objects_of_each_overlay", &|| {
            equal::check(&helm, &kubectl)
        }),
        (
            "the_charts_versions_are_the_projects",
            &chart_values::versions,
        ),
        (
            "every_value_is_typed_and_documented_and_changes_something",
            &|| chart_values::check(&helm, &kubectl),
        ),
        ("wrong_values_are_refused_by_name", &|| {
            chart_values::refused(&helm)
        }),
        ("an_overlay_is_a_base_for_a_folder_elsewhere", &|| {
            kustomize::from_elsewhere(&kubectl)
        }),
        ("an_overlay_is_a_base_by_git", &|| {
            kustomize::by_git(&kubectl)
        }),
        ("a_bill_of_materials_names_what_is_built_in", &sbom::check),
        ("dpkg_unpacks_the_package", &packages::debian),
        ("helm_reads_the_packed_chart", &|| packages::chart(&helm)),
        (
            "a_release_is_installed_upgraded_rolled_back_and_removed",
            &|| lifecycle::check(&helm, &server()?),
        ),
        (
            "a_nodes_label_moves_it_to_portolan_and_back_and_no_node_is_without_a_proxy",
            &|| nodes::check(server()?, &kubectl, &controllers()?),
        ),
    ];
    for (name, test) in tests {
        if !filter.is_empty() && !filter.iter().any(|part| name.contains(part.as_str())) {
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
        seen(name, &result);
    }
    Ok(())
}

/// A path in `deploy/`.
fn folder(name: &str) -> PathBuf {
    cargo::root().join("deploy").join(name)
}
