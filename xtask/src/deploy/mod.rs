// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The tests of `deploy/` that xtask runs itself, because they need helm, kubectl or an API server:
//! the chart, installation, the kubectl plugin. Called by `test`. Needs no root.

mod live;
mod objects;
mod plugin;
mod server;

use std::{path::PathBuf, time::Instant};

use anyhow::{Result, ensure};

use self::{
    objects::{Helm, Kubectl},
    server::Server,
};
use crate::{
    cargo,
    setup::{DENY, go},
    summary::Stage,
};

/// A test: its name, whether the tools are there that take minutes to build, and what it does.
type Test<'a> = (&'a str, bool, &'a dyn Fn() -> Result<()>);

const CONTROLLERS: &str = "kube-controller-manager";

/// Runs every test whose name contains a text of `filter` (empty: all), also after one has failed.
/// Without `builds`, tests are not run that need tools which take minutes to build and are missing.
pub(crate) fn check(filter: &[String], builds: bool, seen: &mut Stage) -> Result<()> {
    let programs = go::control_plane()?;
    if builds {
        DENY.path()?;
    }
    let has_helm = builds || go::has("helm", "helm");
    let has_all = builds || has_helm && go::has("kubernetes", CONTROLLERS);
    let helm = || Helm::new(go::program("helm", "helm")?);
    let kubectl = Kubectl(programs.join("kubectl"));
    let server = || Server::start(&programs);
    let same = || objects::same(&helm()?, &kubectl);
    let ports = || objects::ports(&helm()?);
    let affinity = || objects::affinity(&helm()?, &kubectl);
    let refused = || objects::refused(&helm()?);
    let releases = || objects::releases(&helm()?, &kubectl);
    let plugin = || plugin::check(&server()?, &kubectl.0);
    let nodes = || {
        let controllers = go::program("kubernetes", CONTROLLERS)?;
        live::nodes(server()?, &kubectl, &helm()?, &controllers)
    };
    let tests: [Test<'_>; 8] = [
        (
            "kubectl_apply_gives_the_objects_of_the_chart",
            has_helm,
            &same,
        ),
        ("versions_are_the_projects", true, &objects::versions),
        ("ports_and_probes_follow_the_settings", has_helm, &ports),
        (
            "node_affinity_of_the_values_is_kept_and_ours_added_to_each_term",
            has_helm,
            &affinity,
        ),
        ("wrong_values_are_refused_by_name", has_helm, &refused),
        (
            "an_upgrade_replaces_pods_and_a_release_that_drains_stands_beside_another",
            has_helm,
            &releases,
        ),
        ("the_plugin_asks_the_nodes_of_both_ends", true, &plugin),
        (
            "a_nodes_label_moves_it_to_portolan_and_back_and_no_node_is_without_a_proxy",
            has_all,
            &nodes,
        ),
    ];
    for (name, may_run, test) in tests {
        if !filter.is_empty() && !filter.iter().any(|part| name.contains(part.as_str())) {
            continue;
        }
        if !may_run {
            println!("test {name} ... not run: `cargo xtask test deploy` builds what it needs");
            seen.tally.not_run += 1;
            continue;
        }
        let start = Instant::now();
        let result = test();
        let state = if result.is_ok() { "ok" } else { "FAILED" };
        let seconds = start.elapsed().as_secs_f64();
        println!("test {name} ... {state} ({seconds:.1} s)");
        match result {
            Ok(()) => seen.tally.passed += 1,
            Err(error) => {
                println!("{error:#}");
                seen.tally.failed += 1;
                seen.failures.push(name.to_owned());
            }
        }
    }
    ensure!(seen.failures.is_empty(), "deploy/ is not as it should be");
    Ok(())
}

/// Returns the path of `name` in `deploy/`.
fn folder(name: &str) -> PathBuf {
    cargo::root().join("deploy").join(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{command, fs};

    #[test]
    fn no_file_but_that_of_debugging_pods_asks_for_the_processes_of_the_host() {
        let words = "--recursive --files-with-matches -E hostPID|SYS_PTRACE .";
        let mut command = command::of("grep", words);
        let found = command::output(command.current_dir(folder("")), "search");
        assert_eq!(found.expect("one file"), "./kubectl/kubectl-portolan\n");
    }

    #[test]
    fn the_systemd_unit_has_the_capabilities_of_the_daemon_set() {
        let find = |file: &str, start: &str| -> Vec<String> {
            let text = fs::read_to_string(folder(file)).expect("a file");
            let mut lines = text.lines();
            let words = lines.find_map(|line| line.trim().strip_prefix(start));
            let words = words.expect("the line").trim_end_matches(']');
            let words = words.replace(',', "");
            let names = words.split(' ').map(|word| word.trim_start_matches("CAP_"));
            names.map(str::to_owned).collect()
        };
        let unit = find("systemd/portolan.service", "CapabilityBoundingSet=");
        assert_eq!(unit, find("base/daemonset.yaml", "add: ["));
    }
}
