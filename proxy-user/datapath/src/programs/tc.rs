// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Attaches the tc programs to interfaces: by pinned tcx links where the kernel has them (6.6),
//! else by netlink filters of the clsact qdisc. Links and filters outlive the agent, and their
//! program can be replaced. Used by `Datapath` and `cleanup`.

use std::{
    collections::{BTreeSet, HashMap},
    fs, io,
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
    time::Instant,
};

use aya::programs::{
    TcAttachType,
    tc::{NlOptions, SchedClassifierLink, TcAttachOptions, TcHandle},
};
use linux::{
    Filter, LinkInfo, attach_tcx, detach, filter_qdiscs, filters, get_pinned,
    interfaces::{Interface, InterfaceKind},
    link_info, tcx,
};

use super::{clsact, load::Programs, pin::keep_or_attach, probe::has_tcx};
use crate::{
    error::DatapathError,
    maps::pins::{if_there, links_of},
    options::Attachment,
};

/// Priorities for our filters, tried in this order. The kernel runs the lowest first. A filter that
/// ends classification hides packets from those behind it, and ours never does. A priority that a
/// foreign filter of another kind has cannot be used.
pub(super) const PRIORITIES: std::ops::RangeInclusive<u16> = 1..=8;
/// The upper half of our filters' handles, by which we know them. The kernel never assigns such a
/// handle by itself: the upper half of its own is small.
const HANDLE: u16 = 0x4a54;

/// The directions in the order of attaching: true for egress, and aya's type. Egress restores the
/// addresses of replies, so it comes before ingress, which translates.
pub(super) const DIRECTIONS: [(bool, TcAttachType); 2] =
    [(true, TcAttachType::Egress), (false, TcAttachType::Ingress)];

pub(super) fn direction(egress: bool) -> &'static str {
    if egress { "egress" } else { "ingress" }
}

/// Returns the handle of the filters of a generation of maps, by which a restarted agent finds its
/// own filters.
pub(super) fn handle_of(generation: u32) -> TcHandle {
    TcHandle::new(HANDLE, (generation % 0xffff) as u16 + 1)
}

pub(crate) struct TcAttachments {
    links: PathBuf,
    pub(super) generation: u32,
    pub(super) mode: Attachment,
    attached: BTreeSet<u32>,
    /// The open links, so that they outlive their pins. Key: interface index, and true for egress,
    /// false for ingress.
    pub(super) held: HashMap<(u32, bool), OwnedFd>,
    /// The time when our program was last moved to the front of a hook. Keys are those of `held`.
    pub(super) moved: HashMap<(u32, bool), Instant>,
}

impl TcAttachments {
    /// Starts with the links that an earlier run of the agent left pinned.
    pub(crate) fn adopt(
        home: &Path,
        generation: u32,
        mode: Attachment,
    ) -> Result<Self, DatapathError> {
        let links = links_of(home);
        let attached = pinned_indices(&links).map_err(DatapathError::of_file("read", &links))?;
        Ok(Self {
            links,
            generation,
            mode,
            attached,
            held: HashMap::new(),
            moved: HashMap::new(),
        })
    }
    /// Returns the indices of the interfaces to which this agent, or an earlier one by a pinned
    /// link, has attached programs.
    pub(crate) fn indices(&self) -> Vec<u32> {
        self.attached.iter().copied().collect()
    }

    /// Attaches the programs for egress and ingress, or replaces attached ones. `before` takes the
    /// pin name of a new link. It returns an older generation's link at the same hook, if there is
    /// one: the new link must come after that.
    pub(crate) fn attach(
        &mut self,
        programs: &mut Programs,
        interface: &Interface,
        before: impl Fn(&str) -> Option<OwnedFd>,
    ) -> Result<(), DatapathError> {
        let by_link = self.mode == Attachment::Detect && has_tcx(interface.index);
        for (egress, attach_type) in DIRECTIONS {
            let Some(program) = program_of(interface, egress) else {
                continue;
            };
            programs.require(&program)?;
            let result = if by_link {
                self.attach_link(programs, &program, interface.index, egress, &before)
            } else {
                self.attach_filter(programs, &program, interface, egress, attach_type)
            };
            let Interface { name, index, .. } = interface;
            result
                .map_err(|error| DatapathError::of_interface("attach to", name, *index, error))?;
        }
        self.attached.insert(interface.index);
        Ok(())
    }

    fn attach_link(
        &mut self,
        programs: &Programs,
        program: &str,
        index: u32,
        egress: bool,
        before: impl Fn(&str) -> Option<OwnedFd>,
    ) -> io::Result<()> {
        let program = programs.fd(program).ok_or(io::ErrorKind::NotFound)?;
        let path = self.link_path(index, egress);
        // The index may belong to another interface by now, or the link to an interface in another
        // network namespace.
        let is_it = |info: &LinkInfo| {
            let is_here = info.is_tcx(egress) && info.ifindex == index;
            Ok(is_here && tcx(index, egress)?.iter().any(|(_, link)| *link == info.id))
        };
        let attach = || {
            let before = before(&link_name(index, egress))
                .filter(|link| link_info(link).is_ok_and(|info| info.ifindex == index));
            attach_tcx(program, index, egress, before.as_ref().map(AsFd::as_fd))
        };
        keep_or_attach(
            &mut self.held,
            (index, egress),
            &path,
            program,
            is_it,
            attach,
        )
    }

    pub(super) fn link_path(&self, index: u32, egress: bool) -> PathBuf {
        self.links.join(link_name(index, egress))
    }

    fn attach_filter(
        &self,
        programs: &mut Programs,
        program: &str,
        interface: &Interface,
        egress: bool,
        attach_type: TcAttachType,
    ) -> io::Result<()> {
        // Attaching to an interface that is gone would not report that.
        nix::net::if_::if_nametoindex(interface.name.as_str())?;
        clsact::make(&self.links, interface.index, &interface.name);
        // With the qdisc `ingress`, the kernel would accept filters for egress as well, but run
        // them at ingress.
        if filter_qdiscs()?.get(&interface.index) == Some(&false) {
            return Err(io::Error::other(format!(
                "it has the qdisc ingress (of the CNI plugin bandwidth, for example) in place of clsact, and this kernel lacks tcx, \
                 which needs neither: use Linux 6.6 or newer, or remove it, and with it the limit of what the \
                 pod sends, by `tc qdisc del dev {} ingress`",
                interface.name
            )));
        }
        let classifier = programs
            .classifier(program)
            .ok_or(io::ErrorKind::NotFound)?;
        let handle = handle_of(self.generation);
        let (held, others): (Vec<_>, Vec<_>) = ours(interface.index, egress)?
            .into_iter()
            .partition(|filter| filter.handle == u32::from(handle));
        let replaced = held.first().and_then(|held| {
            let name = &interface.name;
            let old = SchedClassifierLink::attached(name, attach_type, held.priority, handle, None);
            classifier.attach_to_link(old.ok()?).ok()
        });
        let mut attach = |priority| {
            let options = NlOptions {
                priority,
                handle,
                ..NlOptions::default()
            };
            let options = TcAttachOptions::Netlink(options);
            classifier.attach_with_options(&interface.name, attach_type, options)
        };
        let link = match replaced {
            Some(link) => link,
            None => {
                // The filter comes behind the filters of the generation that it replaces.
                let first = others.iter().map(|other| other.priority + 1).max();
                let first = first.unwrap_or(*PRIORITIES.start());
                let mut attached = attach(first);
                for priority in first + 1..=*PRIORITIES.end() {
                    if attached.is_ok() {
                        break;
                    }
                    attached = attach(priority);
                }
                attached.map_err(io::Error::other)?
            }
        };
        // Dropping the link would detach the filter, which must outlive the agent.
        std::mem::forget(classifier.take_link(link).map_err(io::Error::other)?);
        Ok(())
    }

    /// Detaches the programs from the interface with this index, and removes the pins of its links.
    /// The filters of a removed interface are already gone.
    pub(crate) fn detach(&mut self, index: u32) -> Result<(), DatapathError> {
        for egress in [true, false] {
            let path = self.link_path(index, egress);
            let held = self.held.remove(&(index, egress));
            self.moved.remove(&(index, egress));
            for link in held.into_iter().chain(get_pinned(&path, false).ok()) {
                // The interface of the link may be gone.
                let _ = detach(link.as_fd());
            }
            if_there(fs::remove_file(&path)).map_err(DatapathError::of_file("remove", &path))?;
        }
        let links = std::slice::from_ref(&self.links);
        detach_filters(links, index, false).map_err(|source| {
            let name = interface_name(index).unwrap_or_default();
            DatapathError::of_interface("remove the clsact qdisc of", &name, index, source)
        })?;
        self.attached.remove(&index);
        Ok(())
    }
}

/// Returns the name of the program for one direction of an interface; `None` if it needs none
/// there.
pub(super) fn program_of(interface: &Interface, egress: bool) -> Option<String> {
    let direction = direction(egress);
    let loopback = interface.kind == InterfaceKind::Loopback;
    match (loopback, interface.link_layer) {
        (true, _) if !egress => None,
        (true, _) => Some("egress_loopback".to_owned()),
        (false, true) => Some(direction.to_owned()),
        (false, false) => Some(format!("{direction}_l3")),
    }
}

/// Returns the indices of the interfaces whose links are pinned in a directory.
fn pinned_indices(links: &Path) -> io::Result<BTreeSet<u32>> {
    let mut indices = BTreeSet::new();
    for entry in fs::read_dir(links)? {
        let name = entry?.file_name();
        let index = name.to_str().and_then(|name| name.split_once('-'));
        indices.extend(index.and_then(|(index, _)| index.parse::<u32>().ok()));
    }
    Ok(indices)
}

fn link_name(index: u32, egress: bool) -> String {
    format!("{index}-{}", direction(egress))
}

/// Returns our filters at one hook of an interface, of every generation.
pub(super) fn ours(index: u32, egress: bool) -> io::Result<Vec<Filter>> {
    let mut ours = filters(index, egress)?;
    ours.retain(is_ours);
    Ok(ours)
}

pub(super) fn has_ours(index: u32, egress: bool) -> bool {
    ours(index, egress).is_ok_and(|ours| !ours.is_empty())
}

/// True if a filter is ours, of any generation.
pub(super) fn is_ours(filter: &Filter) -> bool {
    filter.kind == "bpf" && filter.handle >> 16 == u32::from(HANDLE)
}

/// Removes the filters of one generation from every interface of the caller's network namespace.
pub(crate) fn detach_filters_of(generation: u32) {
    let handle = u32::from(handle_of(generation));
    for (index, _) in interfaces() {
        for egress in [true, false] {
            detach_filter(index, egress, |known| known == handle);
        }
    }
}

/// Removes our filters from an interface, and the clsact qdisc if we created it; if `dry`, nothing.
/// Returns a text for each object. `links` are the directories of links of all generations, which
/// contain the marks of our qdiscs.
pub(crate) fn detach_filters(
    links: &[PathBuf],
    index: u32,
    dry: bool,
) -> io::Result<Vec<&'static str>> {
    let mut removed = Vec::new();
    for (egress, what) in [(true, "egress filter"), (false, "ingress filter")] {
        let goes = if dry {
            has_ours(index, egress)
        } else {
            detach_filter(index, egress, |_| true)
        };
        removed.extend(goes.then_some(what));
    }
    for links in links {
        removed.extend(clsact::remove(links, index, dry)?.then_some("clsact qdisc"));
    }
    Ok(removed)
}

/// Removes our filters at one hook of an interface if `is_wanted` returns true for their handle.
/// Returns true if one was removed.
fn detach_filter(index: u32, egress: bool, is_wanted: impl Fn(u32) -> bool) -> bool {
    let Some(name) = interface_name(index) else {
        return false;
    };
    let attach_type = if egress {
        TcAttachType::Egress
    } else {
        TcAttachType::Ingress
    };
    let held = ours(index, egress).unwrap_or_default();
    let wanted = held.into_iter().filter(|filter| is_wanted(filter.handle));
    let links = wanted.filter_map(|filter| {
        let handle = TcHandle::from(filter.handle);
        SchedClassifierLink::attached(&name, attach_type, filter.priority, handle, None).ok()
    });
    let mut found = false;
    for link in links {
        found |= aya::programs::links::Link::detach(link).is_ok();
    }
    found
}

/// Returns index and name of every interface of the calling thread's network namespace.
pub(crate) fn interfaces() -> Vec<(u32, String)> {
    let all = nix::net::if_::if_nameindex();
    let all = all.iter().flat_map(|all| all.iter());
    let named = all.map(|one| (one.index(), one.name().to_string_lossy().into_owned()));
    named.collect()
}

fn interface_name(index: u32) -> Option<String> {
    nix::net::if_::if_indextoname(index)
        .ok()?
        .into_string()
        .ok()
}
