// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Findings about the node itself: kernel, privileges, security modules, ports, and whether the
//! programs load. To test that, separate maps and programs are made, which are not attached.

use std::{
    fs,
    path::{Path, PathBuf},
    process,
};

use agent::{
    Decision, SocketHooks,
    server::{Site, listen},
};
use config::Config;
use control::{
    causes::chain,
    syncer::Syncer,
    warnings::{Topic, Warnings},
};
use datapath::{
    Capacities, Datapath, DatapathError, cleanup, has_tcx, is_below_root, is_realtime, maps::pins,
    running_kernel,
};

use super::services::Cluster;
use crate::finding::Finding;

/// The capacity of those test maps that only packets and sockets would fill. Nothing is attached,
/// so they stay empty.
const UNUSED: u32 = 2048;

/// Returns findings about the kernel, IP forwarding, AppArmor and SELinux.
pub(super) fn host() -> Vec<Finding> {
    let read = |path: &str| fs::read_to_string(path).ok();
    let loopback = 1;
    let attached = if has_tcx(loopback) { "tcx" } else { "clsact" };
    let mut found = vec![Finding::note(
        "kernel",
        format!(
            "{}; programs would be attached by {attached}",
            running_kernel()
        ),
    )];
    let realtime = agent::kernel_warning(is_realtime());
    found.extend(realtime.map(|warning| Finding::in_the_way(warning.object, warning.reason, "")));
    found.extend(forwarding(read("/proc/sys/net/ipv4/ip_forward").as_deref()));
    let profile = read("/proc/self/attr/apparmor/current");
    found.extend(apparmor(profile.as_deref()));
    let enforces = read("/sys/fs/selinux/enforce").is_some_and(|word| word.trim() == "1");
    if enforces {
        found.extend(selinux(read("/proc/self/attr/current").as_deref()));
    }
    found
}

fn forwarding(word: Option<&str>) -> Option<Finding> {
    (word.map(str::trim) == Some("0")).then(|| {
        Finding::in_the_way(
            "net.ipv4.ip_forward",
            "is 0: the node forwards no packet of a pod",
            "set it to 1, as every Kubernetes node has it",
        )
    })
}

/// Returns a finding if AppArmor confines this process. `profile`: this process's profile; None
/// without AppArmor.
fn apparmor(profile: Option<&str>) -> Option<Finding> {
    let profile = profile?.trim_end_matches('\0').trim();
    profile.ends_with("(enforce)").then(|| {
        Finding::differs(
            "AppArmor",
            format!("this process runs under the profile {profile}; that of container runtimes denies writing below /sys/fs/bpf"),
            "run the agent unconfined, as the DaemonSets in deploy/ do: docs/install.md, \"Nodes with AppArmor or SELinux\"",
        )
    })
}

/// Returns a finding if SELinux confines this process. `context`: this process's context; None
/// without SELinux.
fn selinux(context: Option<&str>) -> Option<Finding> {
    let kind = context?.trim_end_matches('\0').split(':').nth(2)?;
    (kind == "container_t").then(|| {
        Finding::differs(
            "SELinux",
            "this process runs as container_t, which may not use BPF",
            "run the agent as spc_t, as the DaemonSets in deploy/ do: docs/install.md, \"Nodes with AppArmor or SELinux\"",
        )
    })
}

/// Returns findings about the ports of the agent's HTTP servers; a note only, if an agent runs and
/// uses them.
pub(super) fn ports(config: &Config) -> Vec<Finding> {
    if pins::is_held(&config.pin_directory) {
        return vec![Finding::note("portolan", "an agent runs on this node")];
    }
    let sites = [
        Site {
            address: config.healthz_bind_address,
            setting: "healthzBindAddress",
            paths: "/healthz and /livez",
            topic: Topic::Health,
        },
        Site {
            address: config.metrics_bind_address,
            setting: "metricsBindAddress",
            paths: "/metrics, /configz and /warnings",
            topic: Topic::Metrics,
        },
    ];
    let mut found = Vec::new();
    for site in sites {
        let Err(error) = listen(site.address) else {
            continue;
        };
        let warning = site.warning(&error);
        found.push(if config.bind_address_hard_fail {
            Finding::in_the_way(warning.object, warning.reason, "or unset bindAddressHardFail")
        } else {
            Finding::differs(
                warning.object,
                warning.reason,
                "if kube-proxy has it, nothing: the agent serves meanwhile, and tries again until kube-proxy has ended",
            )
        });
    }
    found
}

/// Returns a finding if `root`, the directory for the socket hooks, is None, not in a cgroup2
/// hierarchy, or not its root; the last is a note only if it was named: a node may be a container.
pub(super) fn cgroup(root: Option<&Path>, is_named: bool) -> Option<Finding> {
    match root {
        None => Some(Finding::in_the_way(
            "cgroup v2",
            "no cgroup2 hierarchy is mounted: the node's own processes would reach no service",
            "mount one with `mount -t cgroup2 none /sys/fs/cgroup`, or name it with --cgroup-root",
        )),
        Some(root) if !root.join("cgroup.controllers").exists() => Some(Finding::in_the_way(
            "cgroup v2",
            format!("{} is not in a cgroup2 hierarchy", root.display()),
            "name one with --cgroup-root",
        )),
        Some(root) => is_below_root(root).then(|| {
            let found = format!(
                "{} is not the root of the node's cgroups: the node's own processes outside of it reach no service, and pods outside of it are served on the packet path",
                root.display()
            );
            let remedy = "run in the node's own cgroup namespace, or name its root with --cgroup-root; no fault if the node is a container itself";
            if is_named {
                Finding::note("cgroup v2", found)
            } else {
                Finding::differs("cgroup v2", found, remedy)
            }
        }),
    }
}

/// Returns the directory for the maps of one check, next to the pin directory. `process`: the
/// check's process id.
fn check_pins(pin_dir: &Path, process: &str) -> PathBuf {
    let mut name = pin_dir.to_owned().into_os_string();
    name.push("-check-");
    name.push(process);
    name.into()
}

/// Removes what checks have left next to a pin directory whose process has been killed. The lock of
/// a directory ends with its process, also if that is in another PID namespace.
fn remove_abandoned(pin_dir: &Path) {
    let start = check_pins(pin_dir, "");
    let start = start.file_name().unwrap_or_default().to_string_lossy();
    let beside = pin_dir.parent().map(fs::read_dir);
    for entry in beside.into_iter().flatten().flatten().flatten() {
        let name = entry.file_name();
        let process = name.to_str().and_then(|name| name.strip_prefix(&*start));
        let is_checks = process.is_some_and(|process| process.parse::<u32>().is_ok());
        if is_checks && !pins::is_held(&entry.path()) {
            // The next check tries it again.
            _ = cleanup::remove_unattached(&entry.path());
        }
    }
}

/// Maps and programs that a check makes to test the kernel. Dropping this removes them.
pub(super) struct Trial {
    pins: PathBuf,
    opened: Result<Datapath, DatapathError>,
}

impl Trial {
    /// Makes maps of the configured sizes and loads the programs, as the agent would. A failure
    /// becomes a finding.
    pub(super) fn begin(config: &Config) -> Self {
        remove_abandoned(&config.pin_directory);
        let pins = check_pins(&config.pin_directory, &process::id().to_string());
        let mut options = agent::options(config);
        options.pin_dir.clone_from(&pins);
        options.capacities = Capacities {
            flows: UNUSED,
            affinity: UNUSED,
            sockets: UNUSED,
            ..options.capacities
        };
        let opened = Datapath::open(&options);
        Self { pins, opened }
    }

    /// Returns the socket hooks that this kernel supports; none if the test maps could not be made.
    pub(super) fn hooks(&self) -> Vec<&'static str> {
        let opened = self.opened.as_ref();
        opened.map(Datapath::wanted_hooks).unwrap_or_default()
    }

    /// Returns findings about programs that the kernel refuses to load.
    pub(super) fn findings(&self) -> Vec<Finding> {
        let datapath = match &self.opened {
            Ok(datapath) => datapath,
            Err(error) => return vec![Finding::in_the_way("kernel programs", chain(error), "")],
        };
        let loaded = Finding::note(
            "kernel programs",
            format!("the kernel takes {} of them", datapath.loads().len()),
        );
        let refused = SocketHooks::refused(datapath);
        let refused = refused.map(|one| Finding::in_the_way(one.object, one.reason, ""));
        [loaded].into_iter().chain(refused).collect()
    }

    /// Puts the cluster's services into the test maps. Returns findings about what was refused, and
    /// whether the maps are large enough.
    pub(super) fn fill(&mut self, cluster: Cluster, config: &Config, node: &str) -> Vec<Finding> {
        let Ok(datapath) = &mut self.opened else {
            return Vec::new();
        };
        let endpoints = cluster.endpoints();
        let warnings = Warnings::default();
        let mut syncer = Syncer::new(node, warnings.clone());
        syncer.state.view.answer_ping = config.answer_ping;
        syncer.state.view.selection = config.selection;
        syncer.state.set_pod_ranges(agent::pod_ranges(config));
        for batch in cluster.batches {
            syncer.fold(batch);
        }
        while syncer.has_changes() {
            syncer.sync(datapath);
        }
        let mut found = Vec::new();
        if syncer.state.node().is_none() {
            found.push(Finding::differs(
                format!("Node {node}"),
                "there is no such object: zones and the node's InternalIP are not known",
                "name the node as Kubernetes does, with --hostname-override",
            ));
        }
        found.extend(agent::misjudged_pods(config, node, &syncer.state).map(Finding::from));
        let full = syncer.full_maps();
        let about_room = |about: &Topic| *about == Topic::Apply && !full.is_empty();
        let held = warnings.by_topic();
        let held = held.into_iter().filter(|(topic, _)| !about_room(topic));
        found.extend(held.map(|(_, warning)| warning.into()));
        found.push(room(datapath, &syncer, endpoints, config));
        found
    }
}

/// Returns a finding that says whether all services fit into the maps, or would after the maps have
/// grown.
fn room(datapath: &Datapath, syncer: &Syncer, endpoints: usize, config: &Config) -> Finding {
    let fills = datapath.fill();
    let (known, held) = (syncer.state.served_count(), datapath.service_count());
    let counted = format!("{known} services, {endpoints} endpoints");
    let limit = config.map_memory_limit();
    let now = Capacities {
        flows: config.sizes().flows,
        affinity: config.sizes().affinity,
        sockets: config.sizes().sockets,
        ..datapath.capacities()
    };
    match agent::decide(
        now,
        &fills,
        &syncer.full_maps(),
        agent::ServiceCounts { known, held },
        limit,
    ) {
        Decision::Enough => Finding::note("room", format!("{counted}: the maps hold them")),
        Decision::Grow(_) => Finding::note(
            "room",
            format!(
                "{counted}: the maps would grow by themselves at the start, within the limit of {} MiB",
                limit >> 20
            ),
        ),
        Decision::Limited(map, needed) => Finding::in_the_way(
            "room",
            format!(
                "{counted}: the map {map} would be nearly full, and to grow it {} MiB would be in use, where portolan.maps.memory \
                 allows {} MiB",
                needed >> 20,
                limit >> 20
            ),
            "raise portolan.maps.memory: docs/tuning.md",
        ),
    }
}

impl Drop for Trial {
    fn drop(&mut self) {
        if self.pins.exists() {
            // Test maps that stay behind do no harm; `portolan cleanup --pin-dir` removes them.
            _ = cleanup::remove_unattached(&self.pins);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::Level;

    #[test]
    fn disabled_ip_forwarding_is_in_the_way() {
        assert_eq!(forwarding(Some("1\n")), None);
        assert_eq!(forwarding(None), None);
        let found = forwarding(Some("0\n")).expect("a finding");
        assert_eq!(found.level, Level::InTheWay);
    }

    #[test]
    fn apparmor_and_selinux_confinement_by_a_runtime_is_a_finding() {
        assert_eq!(apparmor(None), None);
        assert_eq!(apparmor(Some("unconfined\n")), None);
        let found = apparmor(Some("cri-containerd.apparmor.d (enforce)\n")).expect("a finding");
        let named = "profile cri-containerd.apparmor.d (enforce);";
        assert!(found.found.contains(named));
        assert_eq!(selinux(Some("system_u:system_r:spc_t:s0\0")), None);
        assert!(selinux(Some("system_u:system_r:container_t:s0:c1,c2\0")).is_some());
    }

    #[test]
    fn a_missing_cgroup_v2_hierarchy_is_a_finding() {
        assert!(cgroup(None, false).is_some());
        assert!(cgroup(Some(Path::new("/proc")), false).is_some());
        let directory = tempfile::tempdir().expect("a directory");
        let write = |name| fs::write(directory.path().join(name), "").expect("a file");
        write("cgroup.controllers");
        assert_eq!(cgroup(Some(directory.path()), false), None);
        write("cgroup.type");
        for (is_named, level) in [(false, Level::Differs), (true, Level::Note)] {
            let found = cgroup(Some(directory.path()), is_named).expect("not the root");
            assert_eq!(found.level, level);
        }
    }
}
