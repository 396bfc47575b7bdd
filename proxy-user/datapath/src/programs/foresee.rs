// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The foreign programs at the hooks to which ours will be attached, for `portolan check`. Also the
//! programs that are at one interface's hooks now, for `portolan explain`.

use std::{
    collections::HashSet,
    fs::File,
    io,
    os::fd::AsFd,
    path::{Path, PathBuf},
};

use linux::{
    attached_xdp, cgroup_programs, describe_program, get_pinned, interfaces::Interface, link_info,
    program_name,
};

use super::{
    foreign::{ForeignProgram, HookState, Hooks},
    hooks::{HOOKS, path_of},
    probe::has_tcx,
    tc::ours,
};
use crate::maps::pins::{all_links, generations};

/// The foreign programs at the hooks to which ours will be attached.
#[derive(Debug, Default)]
pub struct Foreseen {
    /// The foreign programs at interfaces, each with the interface's name.
    pub programs: Vec<(String, ForeignProgram)>,
    /// The foreign programs at the cgroup's socket hooks.
    pub hooks: Vec<ForeignHook>,
}

/// A foreign program at one of the hooks of a cgroup.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ForeignHook {
    /// The name of our program for this hook.
    pub hook: &'static str,
    /// The foreign program's name, or its id if it has none.
    pub name: String,
}

/// Reads the hooks of those interfaces to which our programs will be attached, and of `cgroup`.
/// Programs of an agent with this pin directory are not foreign.
pub fn foresee(
    pin_dir: &Path,
    interfaces: &[Interface],
    cgroup: Option<&Path>,
) -> io::Result<Foreseen> {
    let mut ours = linked_programs(all_links(pin_dir)?);
    ours.extend(interfaces.iter().flat_map(|one| filter_programs(one.index)));
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
            // The kernel does not have such a hook.
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

/// The ids of an agent's programs, found by the links in its pin directory.
pub struct Attached(HashSet<u32>);

impl Attached {
    pub fn read(pin_dir: &Path) -> io::Result<Self> {
        Ok(Self(linked_programs(all_links(pin_dir)?)))
    }

    pub fn has(&self, id: u32) -> bool {
        self.0.contains(&id)
    }

    /// Returns the state of the tc hooks of the interface with this index: ingress first, then
    /// egress.
    pub fn states(&self, index: u32) -> io::Result<[HookState; 2]> {
        let mut ours = self.0.clone();
        ours.extend(filter_programs(index));
        let hooks = Hooks::read(&ours)?;
        Ok([hooks.state(index, false)?, hooks.state(index, true)?])
    }

    /// Returns the name of the foreign XDP program at an interface; None if there is none.
    pub fn foreign_xdp(&self, index: u32) -> io::Result<Option<String>> {
        let program = attached_xdp(index)?;
        Ok(program.filter(|id| !self.has(*id)).map(describe_program))
    }
}

/// Returns those of the wanted socket hooks to which no program of an agent with this pin directory
/// is attached. A hook has the name of our program for it.
pub fn missing_socket_hooks<'a>(pin_dir: &Path, wanted: &[&'a str]) -> io::Result<Vec<&'a str>> {
    let homes = generations(pin_dir)?.into_iter();
    let homes: Vec<_> = homes.map(|one| one.dir(pin_dir)).collect();
    let is_attached = |hook: &str| {
        let mut links = homes.iter().map(|home| {
            let link = get_pinned(&path_of(home, hook), false);
            link.and_then(link_info)
        });
        links.any(|link| link.is_ok_and(|info| info.cgroup_id().is_some()))
    };
    let missing = wanted.iter().filter(|hook| !is_attached(hook));
    Ok(missing.copied().collect())
}

/// Returns the ids of the programs that these pinned links attach.
pub(crate) fn linked_programs(links: impl IntoIterator<Item = PathBuf>) -> HashSet<u32> {
    let links = links.into_iter();
    let infos = links.map(|path| get_pinned(&path, false).and_then(link_info));
    infos.flatten().map(|info| info.program).collect()
}

/// Returns the ids of our programs that are attached to an interface by clsact filters; none if the
/// interface is gone or has no qdisc.
fn filter_programs(index: u32) -> impl Iterator<Item = u32> {
    let both = [false, true].into_iter();
    both.flat_map(move |egress| ours(index, egress).unwrap_or_default())
        .filter_map(|filter| filter.program)
}
