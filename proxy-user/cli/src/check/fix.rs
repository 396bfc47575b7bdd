// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `portolan check --fix`: repairs what can be repaired without harm: a BPF file system that is not
//! mounted, kernel parameters, and directories of pins whose process has gone. It never touches
//! firewall rules, foreign programs, or a running agent.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use config::{Config, processors};
use control::causes::chain;
use datapath::{
    cleanup,
    maps::pins::{generations, is_bpffs, mount_point},
};

use super::{finding::Finding, node::check_pins_of};
use crate::{
    bpffs,
    conntrack::{self, Due},
};

const IP_FORWARD: &str = "/proc/sys/net/ipv4/ip_forward";

/// Repairs what it can, and returns a finding for each repair.
pub(super) fn findings(config: &Config) -> Vec<Finding> {
    let mut found = Vec::new();
    let point = mount_point(&config.pin_directory);
    // At any other directory, mounting the file system over it might hide files.
    if point == Path::new("/sys/fs/bpf") && is_bpffs(&point).is_ok_and(|is_mounted| !is_mounted) {
        let done = bpffs::mount_at(&point).map(|()| "was not mounted, and is now".to_owned());
        found.push(told(point.display().to_string(), done));
    }
    if fs::read_to_string(IP_FORWARD).is_ok_and(|word| word.trim() == "0") {
        let done = fs::write(IP_FORWARD, "1").map(|()| "was 0, and is 1 now".to_owned());
        found.push(told("net.ipv4.ip_forward", done.map_err(Into::into)));
    }
    for (name, due) in drifted(config) {
        let done = due.and_then(|due| {
            due.set()
                .map(|()| format!("was {}, and is {} now", due.now, due.wanted))
        });
        found.push(told(name, done.map_err(Into::into)));
    }
    for pins in abandoned(&config.pin_directory) {
        let done =
            remove(&pins).map(|()| "was left by a process that has gone; removed".to_owned());
        found.push(told(pins.display().to_string(), done));
    }
    found
}

fn told(about: impl Into<String>, done: anyhow::Result<String>) -> Finding {
    match done {
        Ok(said) => Finding::note(format!("fixed, {}", about.into()), said),
        Err(error) => Finding::differs(
            about,
            format!("could not be fixed: {}", chain(error.as_ref())),
            "run this command as root on the node, not in a container without its privileges",
        ),
    }
}

/// Returns directories of pins next to the pin directory, made by checks whose process has gone.
pub(super) fn abandoned(pin_dir: &Path) -> Vec<PathBuf> {
    let mut found = check_pins_of(pin_dir);
    found.retain(|(_, pid)| !Path::new(&format!("/proc/{pid}")).exists());
    found.into_iter().map(|(path, _)| path).collect()
}

fn remove(pins: &Path) -> anyhow::Result<()> {
    Ok(cleanup::remove_unattached(pins)?)
}

/// Returns findings about harmless leftovers and kernel parameters that `--fix` would repair.
pub(super) fn due(config: &Config) -> Vec<Finding> {
    let mut found = Vec::new();
    for (name, due) in drifted(config) {
        // A parameter that cannot be read does not exist on this node.
        let Ok(Due { now, wanted, .. }) = due else {
            continue;
        };
        let said = format!(
            "is {now}, and the settings (section conntrack) ask for {wanted}: `portolan init` sets it, and so does `portolan check --fix`"
        );
        found.push(Finding::note(name, said));
    }
    found.extend(abandoned(&config.pin_directory).iter().map(|pins| {
        Finding::differs(
            pins.display().to_string(),
            "was left by a check whose process has gone",
            "`portolan check --fix` removes it",
        )
    }));
    found
}

/// Returns the parameters of nf_conntrack that differ from the settings, or that cannot be read.
/// Empty on a node without portolan's maps, because another program sets the parameters there.
fn drifted(config: &Config) -> impl Iterator<Item = (&'static str, io::Result<Due>)> {
    let is_here = generations(&config.pin_directory).is_ok_and(|all| !all.is_empty());
    let looks = is_here && conntrack::is_loaded();
    let due = looks.then(|| conntrack::due(&config.conntrack, processors()));
    due.into_iter().flatten()
}
