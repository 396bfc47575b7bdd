// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Replaces old generations of maps by a new one that has another layout (upgrade and downgrade) or
//! other sizes. In: a pin directory and the wanted shapes of maps. Out: flows, sockets and affinity
//! in the new maps; the old maps are removed. Called by `Datapath`.
//!
//! The old programs go on with their maps while the new maps are filled. Then the new programs are
//! attached behind the old ones, so that they see the packets that the old ones pass on. Then the
//! old programs are *drained*: they translate known connections, begin none and refuse none. From
//! that moment the new programs handle everything new. The contents of the old maps are copied;
//! then each flow is removed from the old maps, so that the new programs handle it at all hooks at
//! once. The old programs are detached, and what their socket hooks have changed meanwhile is
//! copied last. If the agent ends in between, the next one starts again: each step may be repeated.
//!
//! To attach or detach at an interface waits for grace periods of the kernel. So both are done in
//! turns, and the caller does other work in between.
//!
//! Each generation says which fields the elements of its maps have: see `types` and `translation`.

mod copying;
mod counted;
mod flows;
mod hints;
mod references;
mod sockets;
mod translation;
mod types;

use std::{
    collections::HashSet,
    fs, io,
    os::fd::AsFd,
    path::{Path, PathBuf},
    time::Instant,
};

use linux::{get_pinned, link_info};
use proxy_common::maps::{self, generation};

pub use self::copying::Carried;
use self::copying::Copying;
pub(super) use self::types::{TYPES, create as create_types};
use super::{
    error::DatapathError,
    maps::{
        Shape, capacities_in, find_difference,
        pins::{GROWN, Generation, generations, links_of},
        tables::Table,
    },
    options::Capacities,
    programs::{detach_filters_of, is_xdp_pin},
};

/// The old generations of maps that the new one in `home` replaces.
#[derive(Debug)]
pub(super) struct Succession {
    pin_dir: PathBuf,
    home: PathBuf,
    /// The old generations, in the order in which their programs see a packet.
    old: Vec<Generation>,
    /// How many of them have programs in front of those in `home`; the others' are behind.
    in_front: usize,
    stage: Stage,
    copying: Copying,
    /// True if the contents of the old maps have been copied at least once. Then programs with the
    /// new maps may be attached.
    is_carried: bool,
}

/// What the old programs do.
#[derive(Debug)]
enum Stage {
    Serving,
    /// They begin no more flows.
    Drained,
    /// Their flows are being taken from them.
    Taken,
    /// They are being detached; these are the pins of the links that are left.
    Detaching(Vec<PathBuf>),
    Detached,
}

/// Chooses the first generation that has this program's layout and these shapes and is not drained
/// (it may be drained if `adopt_drained` is true), or else a new one. The second value has all
/// other generations, which will be replaced; `None` if there are none.
pub(super) fn choose(
    pin_dir: &Path,
    shapes: &[Shape],
    adopt_drained: bool,
) -> Result<(Generation, Option<Succession>), DatapathError> {
    let mut old = generations(pin_dir).map_err(DatapathError::of_file("read", pin_dir))?;
    let mut chosen = None;
    for (position, generation) in old.iter().enumerate() {
        let dir = generation.dir(pin_dir);
        let may_serve = adopt_drained || !is_drained(&dir);
        if generation.is_known() && may_serve && find_difference(&dir, shapes)?.is_none() {
            chosen = Some(position);
            break;
        }
    }
    let in_front = chosen.unwrap_or(old.len());
    let (generation, is_new) = match chosen {
        Some(position) => (old.remove(position), false),
        None => {
            let number = old.last().map_or(0, |last| last.number + 1);
            let layout = maps::LAYOUT_VERSION;
            (Generation { number, layout }, true)
        }
    };
    let succession = (!old.is_empty()).then(|| Succession {
        pin_dir: pin_dir.into(),
        home: generation.dir(pin_dir),
        old,
        in_front,
        stage: Stage::Serving,
        copying: Copying::new(is_new, in_front),
        is_carried: false,
    });
    Ok((generation, succession))
}

/// Returns the capacities of maps that have grown while an agent ran, so that the next agent does
/// not shrink them. `None` if there are no such maps.
pub(super) fn grown_capacities(pin_dir: &Path) -> Option<Capacities> {
    let all = generations(pin_dir).ok()?.into_iter();
    let grown = all
        .map(|generation| generation.dir(pin_dir))
        .filter(|home| fs::symlink_metadata(home.join(GROWN)).is_ok());
    grown
        .filter_map(|home| capacities_in(&home).ok()?)
        .reduce(Capacities::at_least)
}

fn is_drained(dir: &Path) -> bool {
    word(dir) & generation::DRAINED != 0
}

/// Returns what [`tell`] has told the programs that use the maps in `dir`.
fn word(dir: &Path) -> u32 {
    let map = get_pinned(&dir.join(maps::DRAINED), false).and_then(Table::<u32, u32>::new);
    let word = map.and_then(|map| map.lookup(&0));
    word.ok().flatten().unwrap_or_default()
}

/// Tells the programs that use the maps in `dir` what to do in a succession. `word` has bits of
/// [`generation`]; 0 means to work as usual.
pub(super) fn tell(dir: &Path, word: u32) -> Result<(), DatapathError> {
    let map = match get_pinned(&dir.join(maps::DRAINED), false) {
        // This layout is older than the map `DRAINED`: its programs work as usual until they are
        // detached.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        map => map.and_then(Table::<u32, u32>::new),
    };
    map.and_then(|map| map.update(&0, &word))
        .map_err(DatapathError::of_map("set", maps::DRAINED))
}

impl Succession {
    /// True if the contents of the old maps have been copied at least once.
    pub(super) fn is_carried(&self) -> bool {
        self.is_carried
    }
    /// Returns the names of the old generations, separated by commas.
    pub(super) fn names(&self) -> String {
        let names = self.homes().filter_map(|home| {
            let name = home.file_name()?;
            Some(name.to_string_lossy().into_owned())
        });
        names.collect::<Vec<_>>().join(", ")
    }
    /// Returns the directories of the old generations.
    pub(super) fn homes(&self) -> impl Iterator<Item = PathBuf> {
        self.old
            .iter()
            .map(|generation| generation.dir(&self.pin_dir))
    }
    /// Returns the link behind which a new program must be attached: that of the last old program
    /// at the same hook. `pin` is the name of the link's pin. `None` if there is no such link.
    pub(super) fn link_before(&self, pin: &str) -> Option<std::os::fd::OwnedFd> {
        let homes: Vec<_> = self.homes().collect();
        let mut links = homes.iter().rev().map(|home| links_of(home).join(pin));
        links.find_map(|path| get_pinned(&path, false).ok())
    }
    /// Returns the ids of the old programs that are attached by links.
    pub(super) fn program_ids(&self) -> HashSet<u32> {
        let links = self.homes().flat_map(|home| pins(&links_of(&home)));
        links
            .filter_map(|path| get_pinned(&path, false).ok())
            .filter_map(|link| link_info(link).ok())
            .map(|info| info.program)
            .collect()
    }

    /// Copies everything that the new maps lack from the old ones, part by part until `deadline`;
    /// true if all is copied. The new maps must contain the services already.
    pub(super) fn carry(&mut self, deadline: Option<Instant>) -> Result<bool, DatapathError> {
        if self.in_front > 0 {
            tell(&self.home, generation::BEHIND)?;
        }
        let homes: Vec<_> = self.homes().collect();
        let is_complete = self.copying.go_on(&homes, &self.home, deadline)?;
        self.is_carried |= is_complete;
        Ok(is_complete)
    }
    /// Returns how many entries were copied so far, over all calls of [`Self::carry`].
    pub(super) fn carried(&self) -> Carried {
        self.copying.carried()
    }

    /// True once the old programs begin no more flows.
    pub(super) fn is_drained(&self) -> bool {
        !matches!(self.stage, Stage::Serving)
    }

    /// Makes the old programs begin no more flows, so that the new ones handle all new connections;
    /// then copies what they have begun until then, and takes their flows from them. Stops at
    /// `deadline`; true if all is done.
    pub(super) fn drain(&mut self, deadline: Option<Instant>) -> Result<bool, DatapathError> {
        if let Stage::Serving = self.stage {
            // While programs were attached, flows have ended, and their tuples may be others' now.
            // Begin with what there is at this moment: the new programs have no flows of their own.
            if self.in_front == self.old.len() && !self.homes().any(|home| is_drained(&home)) {
                self.copying.forget_flows();
                if !self.carry(deadline)? {
                    return Ok(false);
                }
            }
            self.homes()
                .try_for_each(|home| tell(&home, generation::DRAINED | word(&home)))?;
            // A program that was creating a flow must end first.
            linux::wait_for_programs();
            // While programs were attached, services may have changed in the new maps, and in the
            // old ones. Drained programs choose no new backends.
            self.copying.read_references();
            self.stage = Stage::Drained;
        }
        if let Stage::Drained = self.stage {
            if !self.carry(deadline)? {
                return Ok(false);
            }
            self.copying.take_flows();
            self.stage = Stage::Taken;
        }
        if let Stage::Taken = self.stage {
            if !self.carry(deadline)? {
                return Ok(false);
            }
            let links = self.homes().flat_map(|home| pins(&links_of(&home)));
            // XDP programs stay attached, because some devices reset when theirs is removed.
            self.stage = Stage::Detaching(links.filter(|path| !is_xdp_pin(path)).collect());
        }
        Ok(true)
    }

    /// Detaches the old tc programs and socket hooks, one after another until `deadline`, but one
    /// at least; true if all are detached.
    pub(super) fn detach(&mut self, deadline: Option<Instant>) -> bool {
        let Stage::Detaching(attached) = &mut self.stage else {
            return true;
        };
        while let Some(path) = attached.pop() {
            if let Ok(link) = get_pinned(&path, false) {
                // The link's interface or cgroup may be gone.
                let _ = linux::detach(link.as_fd());
            }
            if is_over(deadline) {
                return false;
            }
        }
        for generation in &self.old {
            detach_filters_of(generation.number);
        }
        linux::wait_for_programs();
        self.stage = Stage::Detached;
        true
    }

    /// Removes the pins of the old generations, whose programs must be detached. Moves the marks of
    /// qdiscs that we created to the new generation.
    pub(super) fn remove(self) -> Result<(), DatapathError> {
        tell(&self.home, 0)?;
        for home in self.homes() {
            let links = links_of(&home);
            let removed = pins(&links).into_iter().try_for_each(|path| {
                match (path.file_name(), fs::symlink_metadata(&path)) {
                    (Some(name), Ok(metadata)) if metadata.is_symlink() => {
                        fs::rename(&path, links_of(&self.home).join(name))
                    }
                    _ => fs::remove_file(&path),
                }
            });
            let removed = removed
                .and_then(|()| if_there(fs::remove_dir(&links)))
                .and_then(|()| pins(&home).into_iter().try_for_each(fs::remove_file))
                .and_then(|()| if_there(fs::remove_dir(&home)));
            removed.map_err(DatapathError::of_file("remove", &home))?;
        }
        Ok(())
    }
}

/// Returns the paths in a directory; none if the directory is missing.
fn pins(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten();
    entries.flatten().map(|entry| entry.path()).collect()
}

fn if_there(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// True if a deadline has passed.
fn is_over(deadline: Option<Instant>) -> bool {
    deadline.is_some_and(|deadline| Instant::now() >= deadline)
}
