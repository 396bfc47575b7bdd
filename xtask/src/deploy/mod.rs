// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The tests of `deploy/` that xtask runs itself, because they need helm, kubectl or an API server:
//! the chart, installation, the kubectl plugin. Called by `test`. Needs no root.

mod helm;
mod lifecycle;
mod nodes;
mod objects;
mod plugin;
mod server;

use std::{path::PathBuf, time::Instant};

use anyhow::Result;

use self::{objects::Kubectl, server::Server};
use crate::{
    cargo,
    setup::{
        self, DENY,
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
    /// And helm.
    Controllers,
}

impl Needs {
    fn are_built(self) -> bool {
        match self {
            Self::Nothing => true,
            Self::Helm => go::are_built(&HELM, &[HELM_PROGRAM]),
            Self::Controllers => {
                Self::Helm.are_built() && go::are_built(&KUBERNETES, &[CONTROLLERS])
            }
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

/// Runs every test whose name contains a text of `filter` (empty: all), also after one has failed.
/// Calls `seen` with each test's name and result; None means that the test was not run.
pub(crate) fn check(
    filter: &[String],
    tools: Tools,
    mut seen: impl FnMut(&str, Option<&Result<()>>),
) -> Result<()> {
    use Needs::{Controllers, Helm, Nothing};

    let programs = control_plane::find()?;
    if tools == Tools::Built {
        setup::cargo_tool(&DENY)?;
    }
    let helm = || helm::Helm::new(helm_folder()?.join(HELM_PROGRAM.name));
    let kubectl = Kubectl(programs.join("kubectl"));
    let server = || Server::start(&programs);
    let mut test = |name: &str, needs: Needs, test: &dyn Fn() -> Result<()>| {
        if filter.is_empty() || filter.iter().any(|part| name.contains(part.as_str())) {
            let may_run = tools == Tools::Built || needs.are_built();
            seen(name, may_run.then(|| timed(name, test)).as_ref());
            if !may_run {
                println!("test {name} ... not run: `cargo xtask test deploy` builds what it needs");
            }
        }
    };
    test(
        "kubectl_apply_gives_the_objects_of_the_chart",
        Helm,
        &|| objects::same(&helm()?, &kubectl),
    );
    test("versions_are_the_projects", Nothing, &objects::versions);
    test("ports_and_probes_follow_the_settings", Helm, &|| {
        objects::ports(&helm()?)
    });
    let kept = "node_affinity_of_the_values_is_kept_and_ours_added_to_each_term";
    test(kept, Helm, &|| objects::affinity(&helm()?, &kubectl));
    test("wrong_values_are_refused_by_name", Helm, &|| {
        objects::refused(&helm()?)
    });
    test(
        "a_release_is_installed_upgraded_rolled_back_and_removed",
        Helm,
        &|| lifecycle::check(&helm()?, &server()?),
    );
    test("the_plugin_asks_the_nodes_of_both_ends", Nothing, &|| {
        plugin::check(&server()?, &programs.join("kubectl"))
    });
    let label = "a_nodes_label_moves_it_to_portolan_and_back_and_no_node_is_without_a_proxy";
    test(label, Controllers, &|| {
        let folder = go::programs(&KUBERNETES, &[CONTROLLERS], "2 to 5 minutes")?;
        let controllers = folder.join(CONTROLLERS.name);
        nodes::check(server()?, &kubectl, &helm()?, &controllers)
    });
    Ok(())
}

/// Runs a test and prints its result.
fn timed(name: &str, test: &dyn Fn() -> Result<()>) -> Result<()> {
    let start = Instant::now();
    let result = test();
    let state = if result.is_ok() { "ok" } else { "FAILED" };
    let seconds = start.elapsed().as_secs_f64();
    println!("test {name} ... {state} ({seconds:.1} s)");
    if let Err(error) = &result {
        println!("{error:#}");
    }
    result
}

/// Returns the folder with the program helm, which is built if it is missing.
fn helm_folder() -> Result<PathBuf> {
    go::programs(&HELM, &[HELM_PROGRAM], "3 to 8 minutes")
}

/// Returns the path of `name` in `deploy/`.
fn folder(name: &str) -> PathBuf {
    cargo::root().join("deploy").join(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs;

    #[test]
    fn no_file_but_that_of_debugging_pods_asks_for_the_processes_of_the_host() {
        let mut left = vec![folder("")];
        let plugin = folder("kubectl/kubectl-portolan");
        while let Some(path) = left.pop() {
            if path == plugin {
                continue;
            } else if path.is_dir() {
                left.extend(fs::children(&path).expect("a folder"));
            } else if let Ok(text) = fs::read_to_string(&path) {
                let asks = text.contains("hostPID") || text.contains("SYS_PTRACE");
                assert!(!asks, "{}", path.display());
            }
        }
    }

    #[test]
    fn the_systemd_unit_has_the_capabilities_of_the_daemon_set() {
        let find = |file: &str, start: &str| -> Vec<String> {
            let text = fs::read_to_string(folder(file)).expect("a file");
            let words = text
                .lines()
                .find_map(|line| line.trim().strip_prefix(start));
            let words = words.expect("the line").trim_end_matches(']');
            let words = words.split([' ', ',']).filter(|word| !word.is_empty());
            words
                .map(|word| word.trim_start_matches("CAP_").to_owned())
                .collect()
        };
        let unit = find("systemd/portolan.service", "CapabilityBoundingSet=");
        assert_eq!(unit, find("base/daemonset.yaml", "add: ["));
    }
}
