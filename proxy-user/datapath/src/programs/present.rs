// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The programs that are attached now, according to the kernel, with or without an agent. Read by
//! the command line.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    io,
    path::Path,
};

use linux::{get_pinned, interfaces::Interface, link_info, program_name};
use serde::Serialize;

use super::{
    foreign::{Hooks, Member},
    hooks::HOOKS,
    tc::{direction, has_ours, interfaces, program_of},
    xdp::of_pin,
};
use crate::maps::pins::all_links;

/// The number of socket hooks that exist.
pub const HOOK_COUNT: usize = HOOKS.len();

/// Our programs that are attached.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Present {
    /// The tc hooks with a tcx link or clsact filter of ours: the interface's index, and true for
    /// egress, false for ingress.
    pub interfaces: BTreeSet<(u32, bool)>,
    /// The names of our programs that are attached to socket hooks.
    pub hooks: BTreeSet<String>,
    /// Indices of the interfaces whose XDP hook has our program, each with its mode: `native` or
    /// `generic`.
    pub uplinks: BTreeMap<u32, &'static str>,
}

/// Returns which programs of the generations in a pin directory are attached. Looks for clsact
/// filters in the calling thread's network namespace, and only if no tcx link is found.
pub fn present(pin_dir: &Path) -> io::Result<Present> {
    let mut found = Present::default();
    for path in all_links(pin_dir)? {
        found.add(&path)?;
    }
    if found.interfaces.is_empty() {
        for (index, _) in interfaces() {
            let hooks = [(index, false), (index, true)].into_iter();
            let ours = hooks.filter(|(index, egress)| has_ours(*index, *egress));
            found.interfaces.extend(ours);
        }
    }
    Ok(found)
}

impl Present {
    /// Adds the link that is pinned at a path, if it is still attached.
    fn add(&mut self, path: &Path) -> io::Result<()> {
        let name = path.file_name().and_then(|name| name.to_str());
        // The kernel opens a link only for both reading and writing.
        let info = match get_pinned(path, false).and_then(link_info) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Err(error),
            info => info,
        };
        let (Some(name), Ok(info)) = (name, info) else {
            return Ok(());
        };
        // The kernel clears the target of a detached link: an interface's index, or both halves of
        // a cgroup's id.
        if let Some((index, mode)) = of_pin(name) {
            if info.ifindex != 0 {
                self.uplinks.insert(index, mode.name());
            }
            return Ok(());
        }
        if info.ifindex == 0 && (name.starts_with(char::is_numeric) || info.attach_type == 0) {
            return Ok(());
        }
        if let Some(hook) = name.strip_prefix("cgroup-") {
            self.hooks.insert(hook.to_owned());
        } else if let Some((index, direction)) = name.split_once('-') {
            let index = index.parse::<u32>().ok();
            self.interfaces
                .extend(index.map(|index| (index, direction == "egress")));
        }
        Ok(())
    }

    /// Returns the tc hooks that should have a program of ours and have none: the interface, and
    /// "ingress" or "egress". Keeps the order of the interfaces.
    pub fn missing<'a>(
        &'a self,
        wanted: impl IntoIterator<Item = &'a Interface>,
    ) -> impl Iterator<Item = (&'a Interface, &'static str)> {
        let wanted = wanted.into_iter();
        let hooks = wanted.flat_map(|one| [(one, false), (one, true)]);
        let missing = hooks.filter(move |(one, egress)| {
            program_of(one, *egress).is_some() && !self.interfaces.contains(&(one.index, *egress))
        });
        missing.map(|(one, egress)| (one, direction(egress)))
    }
}

/// A pinned link and the program that it attaches.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PinnedLink {
    /// The path of the link's pin, relative to the pin directory.
    pub pin: String,
    pub link: u32,
    pub program: u32,
    pub name: Option<String>,
}

/// Returns every link in a pin directory, with its program.
pub fn pinned_links(pin_dir: &Path) -> io::Result<Vec<PinnedLink>> {
    let mut found = Vec::new();
    for path in all_links(pin_dir)? {
        let Ok(info) = get_pinned(&path, false).and_then(link_info) else {
            continue;
        };
        let pin = path.strip_prefix(pin_dir).unwrap_or(&path);
        found.push(PinnedLink {
            pin: pin.display().to_string(),
            link: info.id,
            program: info.program,
            name: program_name(info.program),
        });
    }
    found.sort();
    Ok(found)
}

/// The tc programs at one hook of an interface, in the order in which the kernel runs them.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Chain {
    pub interface: String,
    pub index: u32,
    pub direction: &'static str,
    /// Programs of tcx links come first, as `program 12 (ingress)`. Then come filters, as `filter 1
    /// flower`: the priority and the kind.
    pub programs: Vec<String>,
}

/// Returns the tc programs at every interface of the calling thread's network namespace. Leaves out
/// hooks without a program.
pub fn chains() -> Vec<Chain> {
    let ours = HashSet::new();
    let mut found = Vec::new();
    let Ok(hooks) = Hooks::read(&ours) else {
        return found;
    };
    for (index, interface) in interfaces() {
        for egress in [false, true] {
            let chain = hooks.chain(index, egress).unwrap_or_default();
            if !chain.is_empty() {
                found.push(Chain {
                    interface: interface.clone(),
                    index,
                    direction: direction(egress),
                    programs: chain.iter().map(Member::in_chain).collect(),
                });
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use linux::{interfaces::InterfaceKind, testing::interface};

    #[test]
    fn missing_programs_are_found_per_direction_and_loopback_has_only_egress() {
        let wanted = [
            interface(1, "lo", InterfaceKind::Loopback),
            interface(2, "eth0", InterfaceKind::Uplink),
        ];
        let missing = |interfaces: &[(u32, bool)]| -> Vec<_> {
            let present = Present {
                interfaces: interfaces.iter().copied().collect(),
                ..Present::default()
            };
            let missing = present.missing(&wanted);
            missing.map(|(one, hook)| (one.index, hook)).collect()
        };
        assert_eq!(missing(&[(1, true), (2, true), (2, false)]), []);
        assert_eq!(missing(&[(1, true), (2, true)]), [(2, "ingress")]);
        assert_eq!(missing(&[]), [(1, "egress"), (2, "ingress"), (2, "egress")]);
    }
}
