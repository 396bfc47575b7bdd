// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Before the programs are attached: the foreign programs at the hooks that they will be attached to. Called by `portolan check`. And
//! what stands at one interface's hooks now: called by `portolan explain`.

use std::{
    collections::HashSet,
    fs::{self, File},
    io,
    os::fd::AsFd,
    path::Path,
};

use super::{
    beside::{ForeignProgram, Hooks},
    entry_points::HOOKS,
    hooks::path_of,
    probe::has_tcx,
    tc::ours,
};
use crate::{
    datapath::{
        maps::pins::{generations, links_of},
        sys::{cgroup_programs, get_pinned, link_info, program_name},
    },
    interfaces::Interface,
};

/// What stands where our programs will be.
#[derive(Debug, Default)]
pub struct Foreseen {
    /// At interfaces, by the interface's name.
    pub programs: Vec<(String, ForeignProgram)>,
    /// At the cgroup.
    pub hooks: Vec<ForeignHook>,
}

/// A foreign program at one of the hooks of a cgroup.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ForeignHook {
    /// Our program for that hook.
    pub hook: &'static str,
    /// Its name; its id if it has none.
    pub name: String,
}

/// Looks at the interfaces that programs are attached to, and at the root of the cgroups. Programs of an agent with this pin directory
/// are not foreign.
pub fn foresee(
    pin_dir: &Path,
    interfaces: &[Interface],
    cgroup: Option<&Path>,
) -> io::Result<Foreseen> {
    let ours = attached_programs(pin_dir, interfaces.iter().map(|one| one.index))?;
    let hooks = Hooks::read(&ours)?;
    let mut found = Foreseen::default();
    for interface in interfaces.iter().filter(|interface| interface.attach) {
        let programs = hooks.foreseen(interface, !has_tcx(interface.index))?;
        let name = &interface.name;
        let programs = programs.into_iter();
        found
            .programs
            .extend(programs.map(|program| (name.clone(), program)));
    }
    if let Some(cgroup) = cgroup {
        found.hooks = foreign_hooks(&ours, cgroup)?;
    }
    Ok(found)
}

fn foreign_hooks(ours: &HashSet<u32>, cgroup: &Path) -> io::Result<Vec<ForeignHook>> {
    let directory = File::open(cgroup)?;
    let mut found = Vec::new();
    for hook in HOOKS {
        let programs = match cgroup_programs(directory.as_fd(), hook.attach_type) {
            // The kernel has no such hook.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => continue,
            programs => programs?,
        };
        let foreign = programs.into_iter().filter(|id| !ours.contains(id));
        found.extend(foreign.map(|id| ForeignHook {
            hook: hook.program,
            name: program_name(id).unwrap_or_else(|| format!("program {id}")),
        }));
    }
    Ok(found)
}

/// What stands at one hook of an interface.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct HookState {
    /// One of our programs is attached.
    pub ours: bool,
    /// Foreign programs, in the order in which the kernel runs them: before ours, and behind it.
    pub before: Vec<String>,
    pub behind: Vec<String>,
}

/// Ingress and egress of the interface with this index. Programs of an agent with this pin directory are ours.
pub fn hook_states(pin_dir: &Path, index: u32) -> io::Result<[HookState; 2]> {
    let ours = attached_programs(pin_dir, [index])?;
    let hooks = Hooks::read(&ours)?;
    Ok([hooks.state(index, false)?, hooks.state(index, true)?])
}

/// Those of these socket hooks that no program of an agent with this pin directory is attached to.
pub fn missing_socket_hooks<'a>(pin_dir: &Path, wanted: &[&'a str]) -> io::Result<Vec<&'a str>> {
    let homes: Vec<_> = generations(pin_dir)?
        .into_iter()
        .map(|generation| generation.dir(pin_dir))
        .collect();
    let is_attached = |hook: &str| {
        let mut paths = homes.iter().map(|home| path_of(home, hook));
        paths.any(|path| get_pinned(&path, false).and_then(link_info).is_ok())
    };
    let missing = wanted.iter().filter(|hook| !is_attached(hook));
    Ok(missing.copied().collect())
}

/// Ids of the programs that are attached by the links pinned below a pin directory, or by filters, at the interfaces with these indices.
fn attached_programs(
    pin_dir: &Path,
    interfaces: impl IntoIterator<Item = u32>,
) -> io::Result<HashSet<u32>> {
    let mut found = HashSet::new();
    for generation in generations(pin_dir)? {
        let Ok(links) = fs::read_dir(links_of(&generation.dir(pin_dir))) else {
            continue;
        };
        for link in links {
            let link = get_pinned(&link?.path(), false).and_then(link_info);
            found.extend(link.ok().map(|link| link.program));
        }
    }
    for interface in interfaces {
        for egress in [false, true] {
            // It may have gone, or have no qdisc.
            let ours = ours(interface, egress).unwrap_or_default();
            found.extend(ours.iter().filter_map(|filter| filter.program));
        }
    }
    Ok(found)
}
