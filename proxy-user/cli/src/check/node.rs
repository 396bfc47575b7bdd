// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Findings about the node itself: kernel, privileges, security modules, ports, and whether the
//! programs load. To test that, separate maps and programs are made, which are not attached.

use std::{
    fmt::Display,
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
    object::Warning,
    syncer::Syncer,
    warnings::{Topic, Warnings},
};
use datapath::{
    Capacities, Datapath, DatapathError, cleanup, has_tcx, is_below_root, is_realtime, maps::pins,
    running_kernel,
};

use super::services::Cluster;
use crate::finding::{Finding, Level};

/// The capacity of test maps that only packets and sockets would fill: they stay empty.
const UNUSED: u32 = 2048;

/// Returns findings about the kernel, IP forwarding, AppArmor and SELinux.
pub(super) fn host() -> Vec<Finding> {
    let read = |path: &str| fs::read_to_string(path).ok();
    let loopback = 1;
    let attached = if has_tcx(loopback) { "tcx" } else { "clsact" };
    let mut found = vec![Finding::of("kernel", &[&running_kernel(), &attached])];
    found.extend(agent::kernel_warning(is_realtime()).map(in_the_way));
    found.extend(forwarding(read("/proc/sys/net/ipv4/ip_forward").as_deref()));
    let profile = read("/proc/self/attr/apparmor/current");
    found.extend(apparmor(profile.as_deref()));
    let enforces = read("/sys/fs/selinux/enforce").is_some_and(|word| word.trim() == "1");
    if enforces {
        found.extend(selinux(read("/proc/self/attr/current").as_deref()));
    }
    found
}

fn in_the_way(warning: Warning) -> Finding {
    Finding::new(Level::InTheWay, warning.object, warning.reason)
}

fn forwarding(word: Option<&str>) -> Option<Finding> {
    (word.map(str::trim) == Some("0")).then(|| Finding::of("no-forwarding", &[]))
}

/// Returns a finding if AppArmor confines this process. `profile`: None without AppArmor.
fn apparmor(profile: Option<&str>) -> Option<Finding> {
    let profile = profile?.trim_end_matches('\0').trim();
    let is_confined = profile.ends_with("(enforce)");
    is_confined.then(|| Finding::of("apparmor", &[&profile]))
}

/// Returns a finding if SELinux confines this process. `context`: None without SELinux.
fn selinux(context: Option<&str>) -> Option<Finding> {
    let kind = context?.trim_end_matches('\0').split(':').nth(2)?;
    (kind == "container_t").then(|| Finding::of("selinux", &[]))
}

/// Returns findings about the ports of the agent's HTTP servers; a note only if an agent runs.
pub(super) fn ports(config: &Config) -> Vec<Finding> {
    if pins::is_held(&config.pin_directory) {
        return vec![Finding::of("agent-runs", &[])];
    }
    let code = match config.bind_address_hard_fail {
        true => "port-taken-fatal",
        false => "port-taken",
    };
    let taken = Site::all(config).into_iter().filter_map(|site| {
        let warning = site.warning(&listen(site.address).err()?);
        Some(Finding::of(code, &[&warning.object, &warning.reason]))
    });
    taken.collect()
}

/// Returns a finding if `root`, the directory for the socket hooks, is None, not in a cgroup2
/// hierarchy, or not its root; the last is a note only if it was named: a node may be a container.
pub(super) fn cgroup(root: Option<&Path>, is_named: bool) -> Option<Finding> {
    let Some(root) = root else {
        return Some(Finding::of("cgroup-none", &[]));
    };
    let code = match is_named {
        _ if !root.join("cgroup.controllers").exists() => "cgroup-outside",
        _ if !is_below_root(root) => return None,
        true => "cgroup-named",
        false => "cgroup-below",
    };
    Some(Finding::of(code, &[&root.display()]))
}

/// Returns the directory, next to the pins, for the maps of the check with this process id.
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
    /// Makes maps of the configured sizes and loads the programs, as the agent would.
    pub(super) fn begin(config: &Config) -> Self {
        remove_abandoned(&config.pin_directory);
        let pins = check_pins(&config.pin_directory, &process::id().to_string());
        let mut options = agent::options(config);
        options.pin_dir.clone_from(&pins);
        options.capacities = Capacities {
            flows: UNUSED,
            flows_v6: UNUSED,
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
            Err(error) => {
                let (about, found) = ("kernel programs", chain(error));
                return vec![Finding::new(Level::InTheWay, about, found)];
            }
        };
        let loaded = Finding::of("programs-load", &[&datapath.loads().len()]);
        let refused = SocketHooks::refused(datapath).map(in_the_way);
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
        syncer.state.view.client_address = config.client_addresses();
        syncer.state.agents.clone_from(&config.agents_service);
        syncer.state.set_pod_ranges(agent::pod_ranges(config));
        for batch in cluster.batches {
            syncer.fold(batch);
        }
        while syncer.has_changes() {
            syncer.sync(datapath);
        }
        let mut found = Vec::new();
        if syncer.state.node().is_none() {
            found.push(Finding::of("no-node", &[&node]));
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

/// Returns a finding about whether all services fit into the maps, perhaps grown.
fn room(datapath: &Datapath, syncer: &Syncer, endpoints: usize, config: &Config) -> Finding {
    let fills = datapath.fill();
    let (known, held) = (syncer.state.served_count(), datapath.service_count());
    let limits = config.map_memory_limits();
    let now = Capacities {
        flows: config.sizes().flows,
        flows_v6: config.sizes().flows_v6,
        affinity: config.sizes().affinity,
        sockets: config.sizes().sockets,
        ..datapath.capacities()
    };
    let services = agent::ServiceCounts { known, held };
    let limited = (limits[0] >> 20).to_string();
    match agent::decide(now, &fills, &syncer.full_maps(), services, limits) {
        Decision::Enough => Finding::of("room", &[&known, &endpoints]),
        Decision::Grow(_) => Finding::of("room-grows", &[&known, &endpoints, &limited]),
        Decision::Limited(map, needed) => {
            let needed = needed >> 20;
            let words: [&dyn Display; 5] = [&known, &endpoints, &map, &needed, &limited];
            Finding::of("room-limited", &words)
        }
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
